//! Authorities are asked, and what they say becomes commands (I12–I14), whatever dies.

use crate::world::{LIMIT, World};
use laneway_store::inspect::{Filter, Resolve, Verdict, unknown_resolve, unknowns_list};
use laneway_store::lookups::{
    Room, Settled, lookup_release, lookup_settle, lookups_claim, lookups_find,
};
use laneway_testkit::{Behaviour, First, Provider, Receiver, Says, sql, wait_for};
use laneway_wire::Record;
use laneway_wire::authority::Answer;
use std::time::{Duration, Instant};

const COMMANDS: &str = "SELECT count(*)::text FROM laneway_control.commands";
const S: Duration = Duration::from_secs(1);
const ROOM: Room<'_> = Room { questions: 10, of_endpoint: 10, under_way: &[] };

/// The provider is asked with a credential; times are those of tests.
async fn world(provider: &Provider) -> World {
    let mut world = World::new().await;
    world.settings.reconciler.lookup_grace = Duration::from_millis(100);
    world.settings.reconciler.lookup_first = Duration::from_millis(100);
    world.settings.reconciler.lookup_max = Duration::from_millis(400);
    world.settings.reconciler.lookup_deadline = S;
    world.authority(&provider.authority(), Some("Bearer sk_test_canary")).await;
    world
}

async fn verdict(world: &World, record: &Record) -> String {
    let query = format!(
        "SELECT coalesce(string_agg(verdict || ' by ' || actor, ', '), '') FROM laneway_control.commands \
         WHERE delivery_id = '{}'",
        record.head.delivery
    );
    world.value(&query).await
}

/// Makes the provider's ledger say that it has applied this.
async fn applied(provider: &Provider, record: &Record) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = provider.url().trim_start_matches("http://").trim_end_matches("/do").to_owned();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /do HTTP/1.1\r\nhost: p\r\nidempotency-key: {}\r\ncontent-length: 0\r\n\r\n",
        record.head.event_id()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_definite_answer_settles_an_unknown() {
    let provider = Provider::start().await;
    let world = world(&provider).await;
    let records: Vec<Record> = (1..=6).map(|n| world.record(n, &format!("k{n}"))).collect();
    let keys: Vec<String> = records.iter().map(|r| r.head.event_id().to_string()).collect();
    applied(&provider, &records[0]).await;
    let scripted = keys.clone();
    provider.set_says(move |key, _| match scripted.iter().position(|known| known == key) {
        Some(2) => Says::InProgress,
        Some(3) => Says::Down,
        Some(4) => Says::Nonsense,
        Some(5) => Says::Cut,
        _ => Says::Truth,
    });
    for record in &records {
        world.unknown(record, 1, Duration::ZERO).await;
    }
    let one = world.start();
    wait_for("two commands and questions again and again", LIMIT, || async {
        world.value(COMMANDS).await == "2"
            && keys[2..].iter().all(|key| provider.account(key).questions >= 3)
    })
    .await;
    assert_eq!(verdict(&world, &records[0]).await, "delivered by reconciler");
    assert_eq!(verdict(&world, &records[1]).await, "not_applied by reconciler");
    for record in &records[2..] {
        assert_eq!(verdict(&world, record).await, "", "never a guess");
    }
    let credential = provider.account(&keys[2]).credential;
    assert_eq!(credential.as_deref(), Some("Bearer sk_test_canary"));
    let stored = "SELECT count(*)::text FROM laneway_control.authorities WHERE position('canary' in header_value::text) > 0 \
                  OR position(encode('canary', 'hex') in encode(header_value, 'hex')) > 0";
    assert_eq!(world.value(stored).await, "0");
    let audit = "SELECT count(*)::text FROM laneway_control.audit_log WHERE action = 'unknown.resolve' \
                 AND actor = 'reconciler' AND detail->>'reason' LIKE 'the authority said %'";
    assert_eq!(world.value(audit).await, "2");
    // A person sees what is going on, and can end it.
    let filter = Filter { tenant: None, endpoint: None, limit: 10 };
    let unknowns = unknowns_list(&world.pool, filter, None).await.unwrap();
    let down = unknowns.iter().find(|unknown| {
        unknown.lane.head.is_some_and(|head| head.delivery == records[3].head.delivery_id())
    });
    let (answer, detail) = down.unwrap().answer.clone().unwrap();
    assert_eq!((answer.as_str(), detail.as_str()), ("unknown", "status 503, fits nothing"));
    let id = records[3].head.delivery_id();
    let written =
        unknown_resolve(&world.pool, None, id, Verdict::Delivered, "called them", "ann").await;
    assert!(matches!(written.unwrap(), Resolve::Written(_)));
    one.stop().await;
}

/// I13: the request may still be worked on until its deadline, and its end may just be being written down.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_asks_before_the_request_can_have_ended() {
    let provider = Provider::start().await;
    let mut world = world(&provider).await;
    world.settings.reconciler.lookup_grace = S;
    let cut = world.record(1, "cut");
    let early = world.record(2, "early");
    let began = Instant::now();
    // The first may travel for 3 s from now; the second ended at once, but the endpoint's deadline is 2 s.
    world.unknown(&cut, 1, 3 * S).await;
    world.unknown(&early, 1, Duration::ZERO).await;
    let one = world.start();
    let mut asked = [Duration::ZERO; 2];
    wait_for("both questions", LIMIT, || {
        for (at, record) in [&cut, &early].into_iter().enumerate() {
            let account = provider.account(&record.head.event_id().to_string());
            if account.questions > 0 && asked[at].is_zero() {
                asked[at] = began.elapsed();
            }
        }
        let both = asked.iter().all(|asked| !asked.is_zero());
        async move { both }
    })
    .await;
    assert!(asked[0] >= 4 * S, "asked after {:?}", asked[0]);
    assert!(asked[1] >= 3 * S, "asked after {:?}", asked[1]);
    one.stop().await;
}

/// Two at work, killed again and again: one command for each unknown, and the right one.
#[tokio::test(flavor = "multi_thread")]
async fn reconcilers_that_die_settle_every_unknown_once() {
    const UNKNOWNS: u32 = 300;
    let provider = Provider::start().await;
    let world = world(&provider).await;
    let records: Vec<Record> = (1..=UNKNOWNS).map(|n| world.record(n, &format!("k{n}"))).collect();
    for record in records.iter().step_by(2) {
        applied(&provider, record).await;
    }
    provider.set_says(|key, asked| {
        match (key.len() + key.bytes().map(usize::from).sum::<usize>()) % 3 {
            0 if asked == 0 => Says::InProgress,
            1 if asked == 0 => Says::Down,
            _ => Says::Truth,
        }
    });
    world.unknowns(&records).await;
    let settled = || async { world.value(COMMANDS).await.parse::<u32>().unwrap() };
    let mut kills = 0;
    loop {
        let before = settled().await;
        let (one, two) = (world.start(), world.start());
        wait_for("a few more", LIMIT, || async { settled().await >= (before + 25).min(UNKNOWNS) })
            .await;
        one.kill();
        two.kill();
        kills += 2;
        if settled().await == UNKNOWNS {
            break;
        }
    }
    assert!(kills >= 10, "{kills} kills");
    for (n, record) in records.iter().enumerate() {
        let wanted =
            if n % 2 == 0 { "delivered by reconciler" } else { "not_applied by reconciler" };
        assert_eq!(verdict(&world, record).await, wanted, "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_too_late_counts_for_nothing() {
    let provider = Provider::start().await;
    let world = world(&provider).await;
    let record = world.record(1, "k");
    world.unknown(&record, 1, Duration::ZERO).await;
    let claim = async || {
        lookups_find(&world.pool, Duration::ZERO, None).await.unwrap();
        sql(&world.url, "UPDATE laneway_control.lookups SET ask_at = now()").await.unwrap();
        lookups_claim(&world.pool, ROOM, S).await.unwrap().remove(0)
    };
    let settle =
        async |lookup, answer| lookup_settle(&world.pool, lookup, answer, "test", S).await.unwrap();
    // The claim has ended and is another's.
    let slow = claim().await;
    let quick = claim().await;
    assert_eq!(settle(&slow, Answer::NotApplied).await, Settled::Stale);
    assert_eq!(settle(&quick, Answer::Unknown).await, Settled::Later);
    // The same delivery was sent again meanwhile and is unknown anew: another question.
    let slow = claim().await;
    sql(&world.url, "UPDATE laneway_control.parked_events SET attempts = 2").await.unwrap();
    assert_eq!(settle(&slow, Answer::NotApplied).await, Settled::Stale);
    assert_eq!(world.value(COMMANDS).await, "0");
    let new = claim().await;
    assert_eq!(settle(&slow, Answer::NotApplied).await, Settled::Stale);
    // A person was quicker.
    let id = record.head.delivery_id();
    unknown_resolve(&world.pool, None, id, Verdict::Delivered, "called them", "ann").await.unwrap();
    assert_eq!(settle(&new, Answer::NotApplied).await, Settled::Stale);
    assert_eq!(verdict(&world, &record).await, "delivered by ann");
    // What is decided is not asked about; what has gone on is forgotten.
    sql(&world.url, "UPDATE laneway_control.lookups SET ask_at = now()").await.unwrap();
    assert!(lookups_claim(&world.pool, ROOM, S).await.unwrap().is_empty());
    sql(
        &world.url,
        "UPDATE laneway_control.commands SET applied_at = now(), result = 'applied'; \
                     UPDATE laneway_control.lookups SET ask_at = now(); \
                     UPDATE laneway_control.parked_lanes SET unknown = false",
    )
    .await
    .unwrap();
    assert!(lookups_claim(&world.pool, ROOM, S).await.unwrap().is_empty());
    assert_eq!(world.value("SELECT count(*)::text FROM laneway_control.lookups").await, "0");
}

/// An authority that takes questions and never answers holds up its own endpoint only.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_authority_keeps_no_other_endpoint_waiting() {
    const HANGING: u32 = 200;
    let hanging = Receiver::start().await;
    hanging.set_script(|_| Behaviour::Hang);
    let provider = Provider::start().await;
    let mut world = world(&provider).await;
    // By far longer than the other endpoint may take, and no more questions at once than the hanging ones could all take.
    world.settings.reconciler.lookup_deadline = 50 * S;
    world.settings.reconciler.lookups_at_once = 16;
    world.settings.reconciler.lookup_connections = 4;
    let silent: Vec<Record> = (1..=HANGING).map(|n| world.record(n, &format!("s{n}"))).collect();
    world.unknowns(&silent).await;
    world.authority(&hanging.url("/ask/{idempotencyKey}"), None).await;
    let one = world.start();
    wait_for("questions that hang", LIMIT, || async { hanging.journal().requests().len() >= 4 })
        .await;
    world.another_endpoint().await;
    let records: Vec<Record> = (1_001..=1_020).map(|n| world.record(n, &format!("k{n}"))).collect();
    world.unknowns(&records).await;
    world.authority(&provider.authority(), None).await;
    let began = Instant::now();
    wait_for("the other endpoint's answers", LIMIT, || async {
        world.value(COMMANDS).await == "20"
    })
    .await;
    let took = began.elapsed();
    assert!(took < 20 * S, "{took:?}");
    // As many as there are connections were claimed and asked; no other one counts as asked, or waits for it.
    assert_eq!(hanging.journal().requests().len(), 4);
    let endpoint = silent[0].head.endpoint;
    let of = |what: &str| {
        format!(
            "SELECT count(*)::text FROM laneway_control.lookups WHERE endpoint_id = '{endpoint}' AND {what}"
        )
    };
    assert_eq!(world.value(&of("claim IS NOT NULL")).await, "4");
    let untouched = of("claim IS NULL AND asked = 0 AND asked_at IS NULL AND ask_at <= now()");
    assert_eq!(world.value(&untouched).await, (HANGING - 4).to_string());
    one.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_no_question_until_it_was_asked() {
    let provider = Provider::start().await;
    let world = world(&provider).await;
    for n in 1..=3 {
        world.unknown(&world.record(n, &format!("k{n}")), 1, Duration::ZERO).await;
    }
    lookups_find(&world.pool, Duration::ZERO, None).await.unwrap();
    sql(&world.url, "UPDATE laneway_control.lookups SET ask_at = now()").await.unwrap();
    let room =
        |of_endpoint, under_way: &'static [_]| Room { questions: 10, of_endpoint, under_way };
    let claim = async |room| lookups_claim(&world.pool, room, S).await.unwrap();
    let asked = "SELECT sum(asked)::text || ' ' || count(claim) || ' ' || count(asked_at) FROM laneway_control.lookups";
    let claimed = claim(room(2, &[])).await;
    assert_eq!(claimed.len(), 2);
    let busy: &'static [_] = Box::leak(Box::new([(world.endpoint, 2)]));
    assert!(claim(room(2, busy)).await.is_empty(), "as many are under way as may be");
    assert_eq!(claim(room(3, busy)).await.len(), 1);
    assert_eq!(world.value(asked).await, "0 3 0");
    lookup_release(&world.pool, &claimed[0], Duration::ZERO).await.unwrap();
    assert_eq!(world.value(asked).await, "0 2 0");
    let again = claim(room(9, &[])).await;
    assert_eq!((again.len(), again[0].asked), (1, 0));
    lookup_release(&world.pool, &claimed[0], Duration::ZERO).await.unwrap();
    assert_eq!(world.value(asked).await, "0 3 0", "the claim is another's by now");
    lookup_settle(&world.pool, &again[0], Answer::Unknown, "test", Duration::ZERO).await.unwrap();
    assert_eq!(world.value(asked).await, "1 2 1");
    assert_eq!(claim(room(9, &[])).await[0].asked, 1);
}

/// What a later version has written, or somebody by hand, is not understood, and is nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_cannot_be_read_keeps_no_other_from_being_asked() {
    let provider = Provider::start().await;
    let mut world = world(&provider).await;
    world.unknown(&world.record(1, "k1"), 1, Duration::ZERO).await;
    sql(&world.url, r#"UPDATE laneway_control.authorities SET rules = '{"later": 1}'"#)
        .await
        .unwrap();
    world.another_endpoint().await;
    let good = world.record(1_001, "k2");
    world.unknown(&good, 1, Duration::ZERO).await;
    world.authority(&provider.authority(), None).await;
    lookups_find(&world.pool, Duration::ZERO, None).await.unwrap();
    sql(&world.url, "UPDATE laneway_control.lookups SET ask_at = now()").await.unwrap();
    let claimed = lookups_claim(&world.pool, ROOM, S).await.unwrap();
    let claimed: Vec<_> = claimed.iter().map(|lookup| lookup.delivery).collect();
    assert_eq!(claimed, [good.head.delivery_id()]);
}

/// The guard of deliveries is the guard of questions (security 5.1, item 6).
#[tokio::test(flavor = "multi_thread")]
async fn an_authority_inside_is_never_asked() {
    let provider = Provider::start().await;
    provider.set_first(|_| First::Answer);
    let mut world = world(&provider).await;
    world.settings.courier.address.allowed = vec![];
    let record = world.record(1, "k");
    world.unknown(&record, 1, Duration::ZERO).await;
    let one = world.start();
    let detail = "SELECT coalesce(max(detail), '') FROM laneway_control.lookups";
    wait_for("the refusal", LIMIT, || async {
        world.value(detail).await == "no answer: target_not_allowed"
    })
    .await;
    assert_eq!(provider.account(&record.head.event_id().to_string()).questions, 0);
    assert_eq!(world.value(COMMANDS).await, "0");
    one.stop().await;
}

/// Clients with a credential are cached by it.
#[tokio::test(flavor = "multi_thread")]
async fn no_revision_of_an_authority_comes_twice() {
    use laneway_store::authorities::{authority_get, authority_remove};
    use laneway_store::idempotency::{Answer, Work};
    let world = World::new().await;
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..6 {
        world.authority("http://127.0.0.1:1/", Some("c")).await;
        let stored = authority_get(&world.pool, world.tenant, world.endpoint).await.unwrap();
        assert!(seen.insert(stored.unwrap().revision), "round {round}: {seen:?}");
        if round % 2 == 0 {
            let mut work = Work::begin(&world.pool, world.tenant).await.unwrap();
            assert!(authority_remove(&mut work, world.endpoint, "ann").await.unwrap());
            work.commit(&Answer { status: 204, body: vec![] }, None).await.unwrap();
        }
    }
}
