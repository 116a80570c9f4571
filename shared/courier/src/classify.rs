//! What a client's error proves. Only errors from before a connection existed prove that nothing was sent; tried
//! against every way to fail of the fault matrix (D1 to D28).

use crate::resolver::NotAllowed;
use crate::target::SendResult;
use std::error::Error;
use std::io;

/// The result that an error of the client stands for.
pub(crate) fn classify(error: &reqwest::Error) -> SendResult {
    if error.is_builder() {
        SendResult::NotSent { class: "bad_request" }
    } else if error.is_connect() {
        SendResult::NotSent { class: connect_class(error) }
    } else if causes(error).any(wants_certificate) {
        // TLS 1.3: the receiver's half of the handshake ends after ours, and it reads no request before that.
        SendResult::NotSent { class: "client_certificate" }
    } else if error.is_timeout() {
        SendResult::Unknown { class: "timeout" }
    } else if causes(error).any(is_reset) {
        SendResult::Unknown { class: "reset" }
    } else {
        SendResult::Unknown { class: "broken_reply" }
    }
}

fn connect_class(error: &reqwest::Error) -> &'static str {
    if causes(error).any(|cause| cause.is::<NotAllowed>()) {
        "target_not_allowed"
    } else if error.is_timeout() {
        "connect_timeout"
    } else if error.is_dns() {
        "dns"
    } else if let Some(class) = causes(error).find_map(certificate_class) {
        class
    } else if causes(error).any(is_tls) {
        "tls"
    } else if causes(error).any(|cause| is_io(cause, &[io::ErrorKind::ConnectionRefused])) {
        "refused"
    } else {
        "connect"
    }
}

/// The chain of causes, with what an io error wraps, which its own `source` passes over.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| {
        match cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        }
    })
}

/// What is wrong with the receiver's certificate.
fn certificate_class(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    use rustls::CertificateError as Wrong;
    let Some(rustls::Error::InvalidCertificate(wrong)) = cause.downcast_ref() else { return None };
    Some(match wrong {
        Wrong::Expired | Wrong::ExpiredContext { .. } => "certificate_expired",
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => "certificate_name",
        _ => "certificate_untrusted",
    })
}

fn wants_certificate(cause: &(dyn Error + 'static)) -> bool {
    let alert = rustls::AlertDescription::CertificateRequired;
    matches!(cause.downcast_ref(), Some(rustls::Error::AlertReceived(received)) if *received == alert)
}

fn is_tls(cause: &(dyn Error + 'static)) -> bool {
    // The end of the stream while connecting: the peer hung up in the middle of the handshake.
    cause.is::<rustls::Error>() || is_io(cause, &[io::ErrorKind::UnexpectedEof])
}

fn is_reset(cause: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    is_io(cause, &[BrokenPipe, ConnectionAborted, ConnectionReset])
}

fn is_io(cause: &(dyn Error + 'static), kinds: &[io::ErrorKind]) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|io| kinds.contains(&io.kind()))
}
