//! One TLS configuration for all clients: the root certificates are read once and shared, session tickets too.

use crate::settings::{Settings, SettingsError};
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use rustls_platform_verifier::Verifier;
use std::sync::Arc;

/// TLS 1.2 and 1.3, the platform's roots and those of [`Settings::extra_ca_file`]; no client certificate.
pub(crate) fn config(settings: &Settings) -> Result<ClientConfig, SettingsError> {
    let extra = match &settings.extra_ca_file {
        None => Vec::new(),
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|source| SettingsError::ExtraCa { path: path.clone(), source })?,
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(SettingsError::Tls)?;
    let has_extra = !extra.is_empty();
    let mut config = match Verifier::new_with_extra_roots(extra, provider) {
        Ok(verifier) => {
            let verifier: Arc<dyn ServerCertVerifier> = Arc::new(verifier);
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
        Err(error) if has_extra => return Err(SettingsError::Tls(error)),
        // A machine without root certificates can still deliver to plain http; https then fails, certainly unsent.
        Err(error) => {
            tracing::error!(%error, "no root certificates: every https endpoint will be refused");
            builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        }
    };
    // http2 is out (security 5.7), so it is not offered either.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
