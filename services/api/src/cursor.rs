//! Cursors: where a page ended, with a tag that ties it to the list of the tenant that it was made for. A cursor says
//! nothing that its owner may not know, but nobody can make one up and come to rely on its form.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use laneway_wire::TenantId;
use sha2::Sha256;
use zeroize::Zeroizing;

const TAG: usize = 8;
/// A longer text is no cursor; refused before it is decoded.
const MAX_TEXT: usize = 256;

/// Makes and reads cursors.
pub(crate) struct Cursors {
    key: Zeroizing<[u8; 32]>,
}

impl Cursors {
    pub(crate) fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self { key }
    }

    /// The cursor of the page that begins after the entry `after` of `tenant`'s list `list`.
    pub(crate) fn write(&self, tenant: TenantId, list: &str, after: &str) -> String {
        let tag = self.mac(tenant, list, after.as_bytes()).finalize().into_bytes();
        let mut bytes = after.as_bytes().to_vec();
        bytes.extend_from_slice(&tag[..TAG]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What [`Cursors::write`] was given, if it was given it for this list of this tenant.
    pub(crate) fn read(&self, tenant: TenantId, list: &str, cursor: &str) -> Option<String> {
        if cursor.len() > MAX_TEXT {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (after, tag) = bytes.split_last_chunk::<TAG>()?;
        self.mac(tenant, list, after).verify_truncated_left(tag).ok()?;
        String::from_utf8(after.to_vec()).ok()
    }

    fn mac(&self, tenant: TenantId, list: &str, after: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_slice())
            .expect("HMAC takes keys of every length");
        for part in [tenant.as_uuid().as_bytes().as_slice(), list.as_bytes(), after] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_cursor_is_good_for_its_own_list_and_tenant_only() {
        let cursors = Cursors::new(Zeroizing::new([1; 32]));
        let (a, b) =
            (TenantId::from_uuid(Uuid::from_u128(1)), TenantId::from_uuid(Uuid::from_u128(2)));
        let cursor = cursors.write(a, "endpoints", "ep_1");
        assert_eq!(cursors.read(a, "endpoints", &cursor).as_deref(), Some("ep_1"));
        assert_eq!(cursors.read(b, "endpoints", &cursor), None);
        assert_eq!(cursors.read(a, "subscriptions", &cursor), None);
        assert_eq!(Cursors::new(Zeroizing::new([2; 32])).read(a, "endpoints", &cursor), None);
        for text in ["", "a", "!!!!", &cursor[1..], &"A".repeat(1_000)] {
            assert_eq!(cursors.read(a, "endpoints", text), None, "{text}");
        }
    }
}
