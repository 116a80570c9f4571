//! What an attempt's result means (design 5.5), in one table.

use crate::effect::AttemptKind;
use crate::input::{AttemptResult, OnUnknown};
use bytes::Bytes;
use laneway_wire::Timestamp;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A 2xx status line was read, whatever came after it (I15).
    Delivered,
    /// Try again by the schedule.
    Retry,
    /// This payload will never be accepted: dead letter at once, the lane goes on.
    Rejected,
    /// The receiver may have done it, and the endpoint takes no resend (P6, I12).
    Hold,
    /// 410: the endpoint wants no more.
    Gone,
    /// No attempt was made.
    NotStarted,
}

/// The verdict, and what the attempt's row says.
#[derive(Debug, Clone)]
pub(crate) struct Classified {
    pub(crate) verdict: Verdict,
    pub(crate) kind: AttemptKind,
    pub(crate) status: Option<u16>,
    pub(crate) class: &'static str,
    pub(crate) body: Bytes,
    /// Nothing of the lane is sent before this.
    pub(crate) clear_at: Option<Timestamp>,
}

impl Classified {
    /// Whether it shows that the endpoint is alive (a rejected payload does, design 5.6).
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.verdict, Verdict::Delivered | Verdict::Rejected | Verdict::Gone)
    }

    /// Whether it counts against the endpoint's health.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.verdict, Verdict::Retry | Verdict::Hold)
    }
}

/// The table of design 5.5.
pub(crate) fn classify(result: AttemptResult, on_unknown: OnUnknown) -> Classified {
    let resend = on_unknown == OnUnknown::Resend;
    let unknown = if resend { Verdict::Retry } else { Verdict::Hold };
    match result {
        AttemptResult::NotStarted => bare(Verdict::NotStarted, AttemptKind::NotSent, "not_started"),
        AttemptResult::NotSent { class } => bare(Verdict::Retry, AttemptKind::NotSent, class),
        AttemptResult::Unknown { class, clear_at } => {
            Classified { clear_at: Some(clear_at), ..bare(unknown, AttemptKind::Unknown, class) }
        }
        AttemptResult::Responded { status, body } => {
            let (verdict, class) = match status {
                200..=299 => (Verdict::Delivered, "delivered"),
                // A gateway may answer for a backend that did the work.
                408 | 499 | 502 | 504 if !resend => (Verdict::Hold, "gateway"),
                410 => (Verdict::Gone, "gone"),
                300..=399 => (Verdict::Retry, "http_3xx"),
                // 499 is a gateway's word about the connection and says nothing of the payload.
                401 | 403 | 404 | 408 | 425 | 429 | 499 => (Verdict::Retry, "http_4xx"),
                400..=499 => (Verdict::Rejected, "http_4xx"),
                500..=599 => (Verdict::Retry, "http_5xx"),
                _ => (Verdict::Retry, "http_other"),
            };
            let kind = if verdict == Verdict::Hold {
                AttemptKind::Unknown
            } else {
                AttemptKind::Responded
            };
            Classified { status: Some(status), body, ..bare(verdict, kind, class) }
        }
    }
}

fn bare(verdict: Verdict, kind: AttemptKind, class: &'static str) -> Classified {
    Classified { verdict, kind, status: None, class, body: Bytes::new(), clear_at: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, on_unknown: OnUnknown) -> Verdict {
        classify(AttemptResult::Responded { status, body: Bytes::new() }, on_unknown).verdict
    }

    #[test]
    fn statuses_mean_what_the_table_says() {
        for status in [200, 201, 204, 299] {
            assert_eq!(of(status, OnUnknown::Resend), Verdict::Delivered);
            assert_eq!(of(status, OnUnknown::Hold), Verdict::Delivered);
        }
        for status in [101, 301, 401, 403, 404, 408, 425, 429, 500, 502, 503, 504, 600, 999] {
            assert_eq!(of(status, OnUnknown::Resend), Verdict::Retry, "{status}");
        }
        for status in [400, 402, 405, 409, 413, 422, 451] {
            assert_eq!(of(status, OnUnknown::Hold), Verdict::Rejected, "{status}");
        }
        for status in [408, 499, 502, 504] {
            assert_eq!(of(status, OnUnknown::Hold), Verdict::Hold, "{status}");
            assert_eq!(of(status, OnUnknown::Lookup), Verdict::Hold, "{status}");
        }
        assert_eq!(of(500, OnUnknown::Hold), Verdict::Retry);
        assert_eq!(of(410, OnUnknown::Hold), Verdict::Gone);
    }

    #[test]
    fn an_unknown_result_is_held_unless_the_endpoint_takes_a_resend() {
        let result = AttemptResult::Unknown { class: "timeout", clear_at: Timestamp(9) };
        let held = classify(result.clone(), OnUnknown::Hold);
        assert_eq!((held.verdict, held.kind), (Verdict::Hold, AttemptKind::Unknown));
        let retried = classify(result, OnUnknown::Resend);
        assert_eq!((retried.verdict, retried.kind), (Verdict::Retry, AttemptKind::Unknown));
        assert_eq!(retried.clear_at, Some(Timestamp(9)));
        let refused = classify(AttemptResult::NotSent { class: "refused" }, OnUnknown::Hold);
        assert_eq!((refused.verdict, refused.kind), (Verdict::Retry, AttemptKind::NotSent));
    }
}
