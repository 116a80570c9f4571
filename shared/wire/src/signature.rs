//! Standard Webhooks signatures, version `v1`: HMAC-SHA256 over `id.timestamp.body` (design 5.7, security 5.2).
//!
//! Keys never show: neither [`Secret`] nor [`Signer`] prints them, and both wipe them when dropped.

use crate::ids::EventId;
use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use zeroize::Zeroizing;

/// Name of the header with the event's id.
pub const ID_HEADER: &str = "webhook-id";
/// Name of the header with the attempt's time, unix seconds.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// Name of the header with the signatures.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// What the text form of a secret begins with.
pub const SECRET_PREFIX: &str = "whsec_";
/// The shortest key, bytes.
pub const MIN_KEY: usize = 24;
/// The longest key, bytes.
pub const MAX_KEY: usize = 64;
/// Secrets that may sign at once: two rotations that overlap (security 5.2).
pub const MAX_SECRETS: usize = 3;
/// How far a timestamp may lie from the receiver's clock when it asks for nothing else (the specification's figure).
pub const DEFAULT_TOLERANCE: Duration = Duration::from_secs(300);

/// Signatures that [`Signer::verify`] looks at in one header.
const MAX_SIGNATURES: usize = 16;
/// A longer text can be no secret; refused before it is decoded.
const MAX_SECRET_TEXT: usize = SECRET_PREFIX.len() + MAX_KEY.div_ceil(3) * 4;
const MAC_LEN: usize = 32;
const TAG: &str = "v1,";
const SIGNATURE_LEN: usize = TAG.len() + 44;

/// Why a text or bytes are not a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The text does not begin with `whsec_`.
    #[error("a secret begins with `whsec_`")]
    Prefix,
    /// What follows the prefix is not base64 with its padding.
    #[error("a secret is base64 after `whsec_`")]
    Base64,
    /// Too few or too many bytes.
    #[error("a secret has {MIN_KEY} to {MAX_KEY} bytes")]
    Length,
}

/// A signing key: 24 to 64 bytes, as text `whsec_` and base64. Wiped when dropped; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes key bytes, e.g. 32 that the caller drew at random.
    pub fn from_bytes(key: &[u8]) -> Result<Self, SecretError> {
        if !(MIN_KEY..=MAX_KEY).contains(&key.len()) {
            return Err(SecretError::Length);
        }
        Ok(Self(Zeroizing::new(key.to_vec())))
    }

    /// The text form, to be shown once to its owner or encrypted.
    pub fn expose(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(MAX_SECRET_TEXT));
        text.push_str(SECRET_PREFIX);
        STANDARD.encode_string(self.0.as_slice(), &mut text);
        text
    }

    /// The key's bytes, to be encrypted.
    pub fn expose_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(SECRET_PREFIX).ok_or(SecretError::Prefix)?;
        if text.len() > MAX_SECRET_TEXT {
            return Err(SecretError::Length);
        }
        let key = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?);
        Self::from_bytes(&key)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why no signer can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an endpoint has 1 to {MAX_SECRETS} active secrets")]
pub struct SecretCount;

/// Why a request is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// One of the three headers is missing.
    #[error("header `{0}` is missing")]
    Missing(&'static str),
    /// One of the three headers is there more than once: which one counts would be a guess.
    #[error("header `{0}` is repeated")]
    Repeated(&'static str),
    /// The id is empty or has a dot, or the timestamp is not a plain number of seconds.
    #[error("header `{0}` is malformed")]
    Malformed(&'static str),
    /// The timestamp is further from the receiver's clock than its tolerance.
    #[error("the timestamp is outside the tolerance")]
    Timestamp,
    /// No signature in the header is of this body under any of the secrets.
    #[error("no signature matches")]
    Signature,
}

/// Signs and verifies with an endpoint's active secrets. The keyed hash states are made once.
#[derive(Clone)]
pub struct Signer(Vec<Hmac<Sha256>>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} secrets)", self.0.len())
    }
}

impl Signer {
    /// A signer with 1 to [`MAX_SECRETS`] secrets, the newest first.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Self, SecretCount> {
        let keyed: Vec<_> = secrets
            .into_iter()
            .take(MAX_SECRETS + 1)
            .map(|secret| {
                Hmac::new_from_slice(secret.expose_bytes()).expect("HMAC takes keys of any length")
            })
            .collect();
        if keyed.is_empty() || keyed.len() > MAX_SECRETS {
            return Err(SecretCount);
        }
        Ok(Self(keyed))
    }

    /// The value of `webhook-signature`: one `v1,…` per secret, with a space between. `at` is unix seconds.
    pub fn sign(&self, event: EventId, at: u64, body: &[u8]) -> String {
        self.sign_text(&event.to_string(), &at.to_string(), body)
    }

    /// As [`Signer::sign`], for a caller that has the texts of the two other headers at hand; neither has a dot.
    pub fn sign_text(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        debug_assert!(!id.contains('.') && !timestamp.contains('.'));
        let mut value = String::with_capacity(self.0.len() * (SIGNATURE_LEN + 1));
        for keyed in &self.0 {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str(TAG);
            let mac = Self::mac(keyed, id, timestamp, body).finalize().into_bytes();
            STANDARD.encode_string(mac, &mut value);
        }
        value
    }

    /// Whether a request with these headers and this body is from the holder of one of the secrets, and fresh:
    /// its timestamp no further than `tolerance` from `now` (unix seconds). Header names in any case and order.
    pub fn verify<'a>(
        &self,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        body: &[u8],
        now: u64,
        tolerance: Duration,
    ) -> Result<(), VerifyError> {
        const NAMES: [&str; 3] = [ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER];
        let mut found: [Option<&str>; 3] = [None; 3];
        for (name, value) in headers {
            let Some(which) = NAMES.iter().position(|wanted| name.eq_ignore_ascii_case(wanted))
            else {
                continue;
            };
            if found[which].replace(value).is_some() {
                return Err(VerifyError::Repeated(NAMES[which]));
            }
        }
        let get = |which: usize| found[which].ok_or(VerifyError::Missing(NAMES[which]));
        let (id, timestamp, signatures) = (get(0)?, get(1)?, get(2)?);
        if id.is_empty() || id.contains('.') {
            return Err(VerifyError::Malformed(ID_HEADER));
        }
        // The text is what was signed: only the one spelling of a number that a signer writes is taken.
        let at = timestamp
            .parse::<u64>()
            .ok()
            .filter(|at| at.to_string() == timestamp)
            .ok_or(VerifyError::Malformed(TIMESTAMP_HEADER))?;
        if at.abs_diff(now) > tolerance.as_secs() {
            return Err(VerifyError::Timestamp);
        }
        let given: Vec<[u8; MAC_LEN]> =
            signatures.split(' ').take(MAX_SIGNATURES).filter_map(Self::parse).collect();
        for keyed in &self.0 {
            let mac = Self::mac(keyed, id, timestamp, body);
            // `verify_slice` compares the whole length in constant time.
            if given.iter().any(|given| mac.clone().verify_slice(given).is_ok()) {
                return Ok(());
            }
        }
        Err(VerifyError::Signature)
    }

    /// A `v1` signature of exactly the right length; others are not ours to judge (RUSTSEC-2024-0010: `v1,` with
    /// nothing behind it once passed elsewhere).
    fn parse(signature: &str) -> Option<[u8; MAC_LEN]> {
        let encoded = signature.strip_prefix(TAG).filter(|_| signature.len() == SIGNATURE_LEN)?;
        STANDARD.decode(encoded).ok()?.try_into().ok()
    }

    fn mac(keyed: &Hmac<Sha256>, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    // The example of the specification and of its libraries.
    const SPEC_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SPEC_ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const SPEC_AT: u64 = 1_614_265_330;
    const SPEC_BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SPEC_SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn spec() -> Signer {
        Signer::new([&SPEC_SECRET.parse().unwrap()]).unwrap()
    }

    fn check(signatures: &str, body: &[u8], now: u64) -> Result<(), VerifyError> {
        let at = SPEC_AT.to_string();
        let headers =
            [(ID_HEADER, SPEC_ID), (TIMESTAMP_HEADER, at.as_str()), (SIGNATURE_HEADER, signatures)];
        spec().verify(headers, body, now, DEFAULT_TOLERANCE)
    }

    #[test]
    fn the_specifications_example_is_signed_and_verified() {
        assert_eq!(spec().sign_text(SPEC_ID, &SPEC_AT.to_string(), SPEC_BODY), SPEC_SIGNATURE);
        assert_eq!(check(SPEC_SIGNATURE, SPEC_BODY, SPEC_AT), Ok(()));
    }

    #[test]
    fn each_active_secret_gives_a_signature_and_each_is_enough() {
        let secrets: Vec<_> = (1..=3u8).map(|n| Secret::from_bytes(&[n; 32]).unwrap()).collect();
        let event = EventId::from_uuid(Uuid::from_u128(7));
        let value = Signer::new(&secrets).unwrap().sign(event, SPEC_AT, SPEC_BODY);
        assert_eq!(value.split(' ').count(), 3);
        let (id, at) = (event.to_string(), SPEC_AT.to_string());
        let headers = [
            ("Webhook-Signature", value.as_str()),
            ("Webhook-Timestamp", &at),
            ("content-type", "x"),
            ("Webhook-Id", &id),
        ];
        for secret in &secrets {
            let one = Signer::new([secret]).unwrap();
            assert_eq!(one.verify(headers, SPEC_BODY, SPEC_AT, DEFAULT_TOLERANCE), Ok(()));
        }
        let retired = Signer::new([&Secret::from_bytes(&[9; 32]).unwrap()]).unwrap();
        assert_eq!(
            retired.verify(headers, SPEC_BODY, SPEC_AT, DEFAULT_TOLERANCE),
            Err(VerifyError::Signature)
        );
        assert!(Signer::new([]).is_err());
        assert!(Signer::new([&secrets[0]; 4]).is_err());
    }

    #[test]
    fn a_signature_that_is_short_empty_cut_or_of_another_version_is_refused() {
        let wrong = Err(VerifyError::Signature);
        let (body, at) = (SPEC_BODY, SPEC_AT);
        for bad in [
            "",
            "v1",
            "v1,",
            "v1,=",
            "v1,g0hM9SsE",
            &SPEC_SIGNATURE[..SPEC_SIGNATURE.len() - 1],
            &format!("{SPEC_SIGNATURE}="),
            &format!("{SPEC_SIGNATURE}AAAA"),
            &SPEC_SIGNATURE.replacen("v1,", "v2,", 1),
            &SPEC_SIGNATURE.replacen("v1,", "v1a,", 1),
            &SPEC_SIGNATURE.replacen("v1,", "V1,", 1),
            &SPEC_SIGNATURE.replacen("v1,", "", 1),
            &SPEC_SIGNATURE.replacen("g0", "g1", 1),
            &SPEC_SIGNATURE.replace(',', ", "),
            "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        ] {
            assert_eq!(check(bad, body, at), wrong, "{bad}");
        }
        assert_eq!(check(SPEC_SIGNATURE, b"{}", at), wrong);
        let many = "v1, ".repeat(MAX_SIGNATURES) + SPEC_SIGNATURE;
        assert_eq!(check(&many, body, at), wrong, "the number looked at is bounded");
        let among = format!("v1a,xyz v1,short {SPEC_SIGNATURE}");
        assert_eq!(check(&among, body, at), Ok(()), "others beside the right one do no harm");
    }

    #[test]
    fn headers_that_are_missing_repeated_or_swapped_are_refused() {
        let at = SPEC_AT.to_string();
        let id = (ID_HEADER, SPEC_ID);
        let time = (TIMESTAMP_HEADER, at.as_str());
        let sig = (SIGNATURE_HEADER, SPEC_SIGNATURE);
        let verify = |headers: &[(&str, &str)]| {
            spec().verify(headers.iter().copied(), SPEC_BODY, SPEC_AT, DEFAULT_TOLERANCE)
        };
        assert_eq!(verify(&[sig, time, id]), Ok(()));
        assert_eq!(verify(&[time, sig]), Err(VerifyError::Missing(ID_HEADER)));
        assert_eq!(verify(&[id, sig]), Err(VerifyError::Missing(TIMESTAMP_HEADER)));
        assert_eq!(verify(&[id, time]), Err(VerifyError::Missing(SIGNATURE_HEADER)));
        let again = ("WEBHOOK-SIGNATURE", "v1,x");
        assert_eq!(verify(&[id, time, sig, again]), Err(VerifyError::Repeated(SIGNATURE_HEADER)));
        assert_eq!(verify(&[id, id, time, sig]), Err(VerifyError::Repeated(ID_HEADER)));
        let swapped = [(ID_HEADER, at.as_str()), (TIMESTAMP_HEADER, SPEC_ID), sig];
        assert_eq!(verify(&swapped), Err(VerifyError::Malformed(TIMESTAMP_HEADER)));
        // A dot would let id and timestamp trade characters under one signature.
        let dotted = format!("{SPEC_ID}.{at}");
        assert_eq!(
            verify(&[(ID_HEADER, &dotted), time, sig]),
            Err(VerifyError::Malformed(ID_HEADER))
        );
        for bad in ["", "-1", "+1614265330", "1614265330.0", " 1614265330", "01614265330", "1e9"] {
            let error = verify(&[id, (TIMESTAMP_HEADER, bad), sig]);
            assert_eq!(error, Err(VerifyError::Malformed(TIMESTAMP_HEADER)), "{bad}");
        }
    }

    #[test]
    fn a_timestamp_outside_the_tolerance_is_refused_on_both_sides() {
        for (now, want) in [
            (SPEC_AT + 300, Ok(())),
            (SPEC_AT - 300, Ok(())),
            (SPEC_AT + 301, Err(VerifyError::Timestamp)),
            (SPEC_AT - 301, Err(VerifyError::Timestamp)),
            (0, Err(VerifyError::Timestamp)),
        ] {
            assert_eq!(check(SPEC_SIGNATURE, SPEC_BODY, now), want);
        }
    }

    #[test]
    fn what_is_no_secret_is_refused_with_its_reason() {
        for (text, error) in [
            ("", SecretError::Prefix),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SecretError::Prefix),
            ("WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SecretError::Prefix),
            ("whsec_", SecretError::Length),
            ("whsec_AAAA", SecretError::Length),
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", SecretError::Base64),
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!", SecretError::Base64),
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", SecretError::Base64),
            (&format!("whsec_{}", "A".repeat(4_000_000)), SecretError::Length),
        ] {
            assert_eq!(text.parse::<Secret>(), Err(error));
        }
        assert_eq!(Secret::from_bytes(&[0; 23]), Err(SecretError::Length));
        assert_eq!(Secret::from_bytes(&[0; 65]), Err(SecretError::Length));
    }

    #[test]
    fn nothing_prints_a_key() {
        let secret: Secret = SPEC_SECRET.parse().unwrap();
        let shown = format!("{secret:?} {:?}", spec());
        assert!(!shown.contains("MfKQ") && !shown.contains("49"), "{shown}");
        assert_eq!(secret.expose().as_str(), SPEC_SECRET);
    }

    proptest! {
        #[test]
        fn the_reference_library_signs_the_same_and_verifies_ours(
            key in proptest::collection::vec(any::<u8>(), MIN_KEY..=MAX_KEY),
            id: u128,
            body in ".{0,300}",
        ) {
            let secret = Secret::from_bytes(&key).unwrap();
            let text = secret.expose();
            prop_assert_eq!(&text.parse::<Secret>().unwrap(), &secret);
            let oracle = standardwebhooks::Webhook::new(&text).unwrap();
            let event = EventId::from_uuid(Uuid::from_u128(id));
            #[expect(clippy::disallowed_methods, reason = "the reference library reads the wall clock itself")]
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            let ours = Signer::new([&secret]).unwrap().sign(event, now, body.as_bytes());
            let theirs = oracle.sign(&event.to_string(), now as i64, body.as_bytes()).unwrap();
            prop_assert_eq!(&ours, &theirs);
            let mut headers = http::HeaderMap::new();
            headers.insert(ID_HEADER, event.to_string().parse().unwrap());
            headers.insert(TIMESTAMP_HEADER, now.to_string().parse().unwrap());
            headers.insert(SIGNATURE_HEADER, ours.parse().unwrap());
            prop_assert!(oracle.verify(body.as_bytes(), &headers).is_ok());
        }

        #[test]
        fn a_changed_body_id_or_time_is_refused(
            body in proptest::collection::vec(any::<u8>(), 1..200),
            at: usize,
            bit in 0u8..8,
        ) {
            let signer = spec();
            let value = signer.sign_text("evt_1", "1000", &body);
            let verify = |id, time, body: &[u8]| signer.verify(
                [(ID_HEADER, id), (TIMESTAMP_HEADER, time), (SIGNATURE_HEADER, value.as_str())],
                body, 1000, DEFAULT_TOLERANCE,
            );
            prop_assert_eq!(verify("evt_1", "1000", &body), Ok(()));
            prop_assert_eq!(verify("evt_2", "1000", &body), Err(VerifyError::Signature));
            prop_assert_eq!(verify("evt_1", "1001", &body), Err(VerifyError::Signature));
            let mut changed = body.clone();
            changed[at % body.len()] ^= 1 << bit;
            prop_assert_eq!(verify("evt_1", "1000", &changed), Err(VerifyError::Signature));
        }

        #[test]
        fn no_header_text_makes_it_panic(id in ".{0,40}", time in ".{0,20}", value in ".{0,80}") {
            let headers = [(ID_HEADER, id.as_str()), (TIMESTAMP_HEADER, &time), (SIGNATURE_HEADER, &value)];
            prop_assert!(spec().verify(headers, b"", 0, Duration::MAX).is_err());
        }
    }
}
