//! Asking an authority what became of a request (design 5.5, C8): which question is asked of an endpoint's own system,
//! and what its answer means. Pure: the reconciler does the asking.
//!
//! Without rules the authority speaks our contract: `200` with `{"outcome": "applied" | "not_applied" | "in_progress" |
//! "unknown", "result": …}`. With rules it is an existing API: the first rule that fits decides. Whatever fits nothing
//! is unknown: never a guess (I14).

use crate::{DeliveryId, EventId};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// Rules of an authority at most.
pub const MAX_RULES: usize = 16;
/// Characters of a body template, a pointer and a header's value at most.
pub const MAX_TEXT: usize = 4_096;

/// What an authority says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was applied: the delivery is delivered, nothing is sent.
    Applied,
    /// It was not, and never will be: it is sent once more, with the same key.
    NotApplied,
    /// It is being applied: ask again later.
    InProgress,
    /// The authority cannot tell: ask again later.
    Unknown,
}

impl Answer {
    /// As stored, shown and used as a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::NotApplied => "not_applied",
            Self::InProgress => "in_progress",
            Self::Unknown => "unknown",
        }
    }
}

/// How a question is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// Reads.
    Get,
    /// Searches that want a body.
    Post,
}

impl Method {
    /// As stored and sent.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }

    /// The inverse of [`Method::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Get, Self::Post].into_iter().find(|method| method.as_str() == text)
    }
}

/// One rule: if status and value fit, this is the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// `200`, `2xx`, or `any`.
    pub status: String,
    /// JSON pointer (RFC 6901) to a value of the body; none: the status alone decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The value there is this one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub equals: Option<Value>,
    /// There is a value there, or is none. The body has to be JSON either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// What it means.
    pub answer: Answer,
}

/// `null` is a value to be compared with.
fn some<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Where and how to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// URL with placeholders: `{idempotencyKey}` (the event's id, as it was sent) and `{deliveryId}`.
    pub url: String,
    /// How.
    pub method: Method,
    /// A JSON body with the same placeholders; only with [`Method::Post`].
    pub body: Option<String>,
    /// None: the authority speaks our contract.
    pub rules: Vec<Rule>,
}

/// Why an authority cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The same question for all deliveries would have one answer for all.
    #[error("neither URL nor body has {{idempotencyKey}} or {{deliveryId}}")]
    NoPlaceholder,
    /// A GET has no body.
    #[error("a body needs the method POST")]
    Body,
    /// It could not be read by who is asked.
    #[error("the body is no JSON text")]
    BodyNotJson,
    /// Too many rules, or too long texts.
    #[error("too many rules or too long texts")]
    TooLarge,
    /// A rule's status is none of the forms.
    #[error("status of rule {0} is not `200`, `2xx` or `any`")]
    Status(usize),
    /// It would make a guess of any answer: of a gateway's too.
    #[error("rule {0} says so of any status without a pointer")]
    Anything(usize),
    /// A pointer that is none, or one without a test, or a test without one, or two tests.
    #[error("rule {0} needs a pointer with either `equals` or `exists`, or none of them")]
    Test(usize),
}

/// What an answer means, and a word on why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// What it means.
    pub answer: Answer,
    /// For people: the status, and which rule fitted.
    pub detail: String,
}

impl Authority {
    /// Checks everything but where the URL leads, which the address policy does.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), AuthorityError> {
        let body = self.body.as_deref().unwrap_or_default();
        let names_one =
            |text: &str| text.contains("{idempotencyKey}") || text.contains("{deliveryId}");
        if !names_one(&self.url) && !names_one(body) {
            return Err(AuthorityError::NoPlaceholder);
        }
        if self.body.is_some() && self.method == Method::Get {
            return Err(AuthorityError::Body);
        }
        let pointers = self.rules.iter().filter_map(|rule| rule.pointer.as_deref());
        let values = self.rules.iter().filter_map(|rule| rule.equals.as_ref());
        if self.rules.len() > MAX_RULES
            || std::iter::once(body).chain(pointers).any(|text| text.len() > MAX_TEXT)
            || values.map(Value::to_string).any(|text| text.len() > MAX_TEXT)
        {
            return Err(AuthorityError::TooLarge);
        }
        // As it will be asked: a placeholder may stand where JSON has no text.
        let (_, asked) =
            self.question(EventId::from_uuid(Uuid::nil()), DeliveryId::from_uuid(Uuid::nil()));
        if asked.is_some_and(|body| serde_json::from_str::<IgnoredAny>(&body).is_err()) {
            return Err(AuthorityError::BodyNotJson);
        }
        for (number, rule) in self.rules.iter().enumerate() {
            if !is_status(&rule.status) {
                return Err(AuthorityError::Status(number));
            }
            let tests = usize::from(rule.equals.is_some()) + usize::from(rule.exists.is_some());
            let well_formed = match &rule.pointer {
                Some(pointer) => is_pointer(pointer) && tests == 1,
                None => tests == 0,
            };
            let is_definite = matches!(rule.answer, Answer::Applied | Answer::NotApplied);
            if rule.status == "any" && rule.pointer.is_none() && is_definite {
                return Err(AuthorityError::Anything(number));
            }
            if !well_formed {
                return Err(AuthorityError::Test(number));
            }
        }
        Ok(())
    }

    /// The URL and the body that ask about one delivery. Ids have nothing in them that either would have to escape.
    pub fn question(&self, event: EventId, delivery: DeliveryId) -> (String, Option<String>) {
        let fill = |text: &str| {
            text.replace("{idempotencyKey}", &event.to_string())
                .replace("{deliveryId}", &delivery.to_string())
        };
        (fill(&self.url), self.body.as_deref().map(fill))
    }

    /// What the authority's answer means.
    pub fn judge(&self, status: u16, body: &[u8]) -> Judgement {
        let json: Option<Value> = serde_json::from_slice(body).ok();
        if self.rules.is_empty() {
            let outcome = json.as_ref().and_then(|body| body.get("outcome")).cloned();
            let answer = outcome.and_then(|outcome| serde_json::from_value(outcome).ok());
            return match answer.filter(|_| status == 200) {
                Some(answer) => Judgement { answer, detail: format!("status {status}, contract") },
                None => unknown(status),
            };
        }
        for (number, rule) in self.rules.iter().enumerate() {
            if rule.fits(status, json.as_ref()) {
                let detail = format!("status {status}, rule {number}");
                return Judgement { answer: rule.answer, detail };
            }
        }
        unknown(status)
    }
}

fn unknown(status: u16) -> Judgement {
    Judgement { answer: Answer::Unknown, detail: format!("status {status}, fits nothing") }
}

impl Rule {
    fn fits(&self, status: u16, body: Option<&Value>) -> bool {
        let text = status.to_string();
        let status_fits = match self.status.strip_suffix("xx") {
            Some(class) => text.len() == 3 && text.starts_with(class),
            None => self.status == "any" || self.status == text,
        };
        let Some(pointer) = &self.pointer else { return status_fits };
        // A body that is not JSON tells nothing, not even that something is absent.
        let Some(body) = body else { return false };
        let found = body.pointer(pointer);
        status_fits
            && match (&self.equals, self.exists) {
                (Some(wanted), _) => found == Some(wanted),
                (None, Some(exists)) => found.is_some() == exists,
                (None, None) => false,
            }
    }
}

/// RFC 6901. One that is none leads to nothing, and "there is nothing" would be true of every answer.
fn is_pointer(text: &str) -> bool {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    (text.is_empty() || text.starts_with('/')) && escapes
}

fn is_status(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit();
    match text.as_bytes() {
        [b'1'..=b'9', b'x', b'x'] => true,
        [b'1'..=b'9', tens, ones] => digit(*tens) && digit(*ones),
        _ => text == "any",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn authority(rules: &str) -> Authority {
        Authority {
            url: "https://pay.example/v1/charges?key={idempotencyKey}".to_owned(),
            method: Method::Get,
            body: None,
            rules: serde_json::from_str(rules).unwrap(),
        }
    }

    /// The two examples of docs/unknowns.md.
    const BY_KEY: &str = r#"[
        {"status":"200","pointer":"/status","equals":"succeeded","answer":"applied"},
        {"status":"200","pointer":"/status","equals":"pending","answer":"in_progress"},
        {"status":"404","pointer":"/error/code","equals":"no_such_charge","answer":"not_applied"}]"#;
    const BY_LIST: &str = r#"[
        {"status":"200","pointer":"/data/0/status","equals":"succeeded","answer":"applied"},
        {"status":"200","pointer":"/data/0","exists":true,"answer":"in_progress"},
        {"status":"200","pointer":"/data","equals":[],"answer":"not_applied"}]"#;

    #[test]
    fn a_provider_that_finds_a_charge_by_its_key_is_understood() {
        let authority = authority(BY_KEY);
        assert_eq!(authority.check(), Ok(()));
        for (status, body, answer) in [
            (200, r#"{"status":"succeeded"}"#, Answer::Applied),
            (200, r#"{"status":"pending"}"#, Answer::InProgress),
            (200, r#"{"status":"failed"}"#, Answer::Unknown),
            (404, r#"{"error":{"code":"no_such_charge"}}"#, Answer::NotApplied),
            // A 404 of something else, e.g. of a gateway that has lost its route.
            (404, "<html>not found</html>", Answer::Unknown),
            (404, "{}", Answer::Unknown),
            (500, r#"{"status":"succeeded"}"#, Answer::Unknown),
            (200, r#"{"status":"succee"#, Answer::Unknown),
        ] {
            assert_eq!(authority.judge(status, body.as_bytes()).answer, answer, "{status} {body}");
        }
    }

    #[test]
    fn a_provider_that_lists_charges_is_understood() {
        let authority = authority(BY_LIST);
        assert_eq!(authority.check(), Ok(()));
        for (body, answer) in [
            (r#"{"data":[{"status":"succeeded"}]}"#, Answer::Applied),
            (r#"{"data":[{"status":"processing"}]}"#, Answer::InProgress),
            (r#"{"data":[]}"#, Answer::NotApplied),
            (r#"{"error":"try later"}"#, Answer::Unknown),
            ("", Answer::Unknown),
        ] {
            assert_eq!(authority.judge(200, body.as_bytes()).answer, answer, "{body}");
        }
    }

    #[test]
    fn the_contract_is_a_word_and_a_200() {
        let authority = authority("[]");
        for answer in [Answer::Applied, Answer::NotApplied, Answer::InProgress, Answer::Unknown] {
            let body = format!(r#"{{"outcome":"{}","result":{{"id":7}}}}"#, answer.as_str());
            assert_eq!(authority.judge(200, body.as_bytes()).answer, answer);
            assert_eq!(authority.judge(503, body.as_bytes()).answer, Answer::Unknown);
        }
        assert_eq!(authority.judge(200, br#"{"outcome":"done"}"#).answer, Answer::Unknown);
        assert_eq!(authority.judge(200, br#"["applied"]"#).answer, Answer::Unknown);
    }

    #[test]
    fn a_question_names_its_delivery() {
        let (event, delivery) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (event, delivery) = (EventId::from_uuid(event), DeliveryId::from_uuid(delivery));
        let mut authority = authority("[]");
        authority.method = Method::Post;
        authority.body = Some(r#"{"id":"{deliveryId}"}"#.to_owned());
        let (url, body) = authority.question(event, delivery);
        assert_eq!(url, format!("https://pay.example/v1/charges?key={event}"));
        assert_eq!(body, Some(format!(r#"{{"id":"{delivery}"}}"#)));
    }

    #[test]
    fn what_could_not_be_asked_or_would_mean_anything_is_refused() {
        let rules = |text: &str| authority(text).check();
        assert_eq!(
            rules(r#"[{"status":"2x","answer":"applied"}]"#),
            Err(AuthorityError::Status(0))
        );
        assert_eq!(
            rules(r#"[{"status":"any","pointer":"/a","answer":"applied"}]"#),
            Err(AuthorityError::Test(0))
        );
        assert_eq!(
            rules(r#"[{"status":"200","equals":1,"answer":"applied"}]"#),
            Err(AuthorityError::Test(0))
        );
        for pointer in ["a", "/a~", "/a~2b", "/~/b"] {
            let rule = format!(
                r#"[{{"status":"200","pointer":"{pointer}","exists":false,"answer":"not_applied"}}]"#
            );
            assert_eq!(rules(&rule), Err(AuthorityError::Test(0)), "{pointer}");
        }
        let escaped = r#"[{"status":"200","pointer":"/a~0~1b","exists":true,"answer":"applied"}]"#;
        assert_eq!(rules(escaped), Ok(()));
        for (answer, wanted) in [
            ("applied", Err(AuthorityError::Anything(0))),
            ("not_applied", Err(AuthorityError::Anything(0))),
            ("in_progress", Ok(())),
        ] {
            let rule = format!(r#"[{{"status":"any","answer":"{answer}"}}]"#);
            assert_eq!(rules(&rule), wanted, "{answer}");
        }
        let long = "x".repeat(MAX_TEXT);
        let rule =
            format!(r#"[{{"status":"200","pointer":"/a","equals":"{long}","answer":"applied"}}]"#);
        assert_eq!(rules(&rule), Err(AuthorityError::TooLarge));
        let mut posted = authority("[]");
        posted.method = Method::Post;
        for (body, wanted) in [
            (r#"{"key":"{idempotencyKey}"}"#, Ok(())),
            (r#"{"key":"{idempotencyKey}""#, Err(AuthorityError::BodyNotJson)),
            (r#"{"key":{idempotencyKey}}"#, Err(AuthorityError::BodyNotJson)),
        ] {
            posted.body = Some(body.to_owned());
            assert_eq!(posted.check(), wanted, "{body}");
        }
        let mut same = authority("[]");
        same.url = "https://pay.example/last".to_owned();
        assert_eq!(same.check(), Err(AuthorityError::NoPlaceholder));
        let mut get = authority("[]");
        get.body = Some("{}".to_owned());
        assert_eq!(get.check(), Err(AuthorityError::Body));
    }

    proptest! {
        #[test]
        fn no_answer_is_a_panic(status in 100u16..1000, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            for rules in ["[]", BY_KEY, BY_LIST] {
                authority(rules).judge(status, &body);
            }
        }
    }
}
