//! Endpoint secrets: encrypted at rest, told once (security 5.3, I43).

use crate::support::{Api, SECRETS_KEY};
use laneway_store::endpoints::endpoint_secret_open;
use laneway_store::secrets::SecretsKey;
use laneway_testkit::sql;
use laneway_wire::{EndpointId, TenantId};

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[tokio::test]
async fn a_secret_is_stored_encrypted_and_told_when_it_is_made_and_never_again() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let canary = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5ISE=";
    let body = format!(r#"{{"url":"https://shop.example/","secret":"{canary}"}}"#);
    let made = api.post(&tenant, "endpoints", Some("k"), body.as_bytes()).await;
    assert_eq!((made.status, made.json()["secret"].as_str()), (201, Some(canary)), "{made:?}");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        made.header("location"),
        Some(format!("/api/v1/projects/{}/endpoints/{id}", tenant.id).as_str())
    );
    for path in [format!("endpoints/{id}"), "endpoints".to_owned()] {
        let answer = api.get(&tenant, &path).await;
        assert_eq!(answer.status, 200);
        assert!(!String::from_utf8_lossy(&answer.body).contains("whsec_"), "{path}");
    }
    // The same request again is the same answer (I36), which is why the stored answer is encrypted too.
    let again = api.post(&tenant, "endpoints", Some("k"), body.as_bytes()).await;
    assert_eq!(again.body, made.body);
    assert_eq!(api.count("SELECT count(*) FROM laneway_control.endpoints").await, 1);
    let dump = sql(
        &api.database,
        "SELECT encode(secret, 'hex') FROM laneway_control.endpoints \
         UNION ALL SELECT encode(body, 'hex') FROM laneway_control.idempotency_keys",
    )
    .await
    .unwrap();
    let plain: [&[u8]; 3] = [canary.as_bytes(), b"canary", b"Y2FuYXJ5"];
    for row in &dump {
        let stored = unhex(row[0].as_ref().unwrap());
        assert_eq!(&stored[..4], b"\x01\x02k1", "version and key id stand in front");
        for plain in plain {
            assert!(!stored.windows(plain.len()).any(|window| window == plain));
        }
    }
    // Who has the key reads it, for this tenant and endpoint only.
    let key: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).unwrap());
    assert_eq!(SECRETS_KEY.len(), 44);
    let secrets = SecretsKey::new("k1", key);
    let id: EndpointId = id.parse().unwrap();
    let stored = unhex(dump[0][0].as_ref().unwrap());
    let opened = endpoint_secret_open(&secrets, tenant.id, id, &stored).unwrap();
    assert_eq!(opened.expose().as_str(), canary);
    let elsewhere = TenantId::from_uuid(id.as_uuid());
    assert!(endpoint_secret_open(&secrets, elsewhere, id, &stored).is_err());
}

#[tokio::test]
async fn a_secret_that_is_made_up_is_random_and_valid() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let made = api
            .post(&tenant, "endpoints", None, br#"{"url":"https://shop.example/"}"#)
            .await
            .json();
        let secret: laneway_wire::signature::Secret =
            made["secret"].as_str().unwrap().parse().unwrap();
        seen.insert(secret.expose().to_string());
    }
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn api_keys_are_stored_as_hashes_and_their_use_is_noted() {
    let api = Api::start().await;
    let tenant = api.tenant().await;
    assert_eq!(
        api.count("SELECT count(*) FROM laneway_control.api_keys WHERE last_used_at IS NOT NULL")
            .await,
        0
    );
    assert_eq!(api.get(&tenant, "endpoints").await.status, 200);
    assert_eq!(
        api.count("SELECT count(*) FROM laneway_control.api_keys WHERE last_used_at IS NOT NULL")
            .await,
        1
    );
    let dump = sql(&api.database, "SELECT k::text FROM laneway_control.api_keys k").await.unwrap();
    assert!(!dump[0][0].as_ref().unwrap().contains(&tenant.key[17..]));
    sql(&api.database, "UPDATE laneway_control.api_keys SET expires_at = now()").await.unwrap();
    assert_eq!(api.get(&tenant, "endpoints").await.status, 401);
}

#[tokio::test]
async fn projects_and_keys_are_listed_without_what_is_secret() {
    use laneway_store::keys::{Scope, key_create, key_revoke, key_verify, keys_list};
    use laneway_store::projects::{project_create, projects_list};
    use std::time::Duration;
    let api = Api::start().await;
    let mut made = Vec::new();
    for name in ["a", "b", "c"] {
        made.push(project_create(&api.pool, name).await.unwrap());
    }
    let first = projects_list(&api.pool, None, 2).await.unwrap();
    let rest = projects_list(&api.pool, Some(first[1].id), 2).await.unwrap();
    assert_eq!((first, rest), (made[..2].to_vec(), made[2..].to_vec()));
    assert!(project_create(&api.pool, "").await.unwrap_err().is_check_violation());

    let tenant = made[0].id;
    let scopes = [Scope::EventsWrite, Scope::DeliveriesRead];
    let hour = Some(Duration::from_secs(3_600));
    let issued = key_create(&api.pool, tenant, &scopes, hour).await.unwrap().unwrap();
    assert!(key_create(&api.pool, tenant, &scopes, None).await.unwrap().is_some());
    let stranger = "prj_0000000000000000000001".parse().unwrap();
    assert!(key_create(&api.pool, stranger, &scopes, None).await.unwrap().is_none());
    let caller = key_verify(&api.pool, &issued.text).await.unwrap().unwrap();
    assert_eq!((caller.tenant, &caller.key_id), (tenant, &issued.key_id));
    assert!(caller.has(Scope::EventsWrite) && !caller.has(Scope::EndpointsWrite));
    let keys = keys_list(&api.pool, tenant, 10).await.unwrap();
    assert_eq!(
        (keys.len(), &keys[0].key_id, &keys[0].scopes[..]),
        (2, &issued.key_id, &scopes[..])
    );
    assert!(issued.text.ends_with(&keys[0].last4) && keys[0].last_used_at.is_some());
    assert!(keys[0].expires_at.is_some() && keys[0].revoked_at.is_none());
    assert!(key_revoke(&api.pool, tenant, &issued.key_id).await.unwrap());
    assert!(!key_revoke(&api.pool, tenant, &issued.key_id).await.unwrap());
    assert_eq!(key_verify(&api.pool, &issued.text).await.unwrap(), None);
    assert!(keys_list(&api.pool, tenant, 10).await.unwrap()[0].revoked_at.is_some());
}
