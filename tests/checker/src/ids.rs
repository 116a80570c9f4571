//! Ids in their public forms: a UUID, or `prefix_` and 22 base62 digits (0-9, A-Z, a-z) of the same 128 bits.

const BASE62_DIGITS: usize = 22;
const HEX_DIGITS: usize = 32;

/// The 128 bits of an id in either form.
pub(crate) fn parse(text: &str) -> Option<u128> {
    match text.split_once('_') {
        Some((_, digits)) => base62(digits),
        None => uuid(text),
    }
}

fn base62(digits: &str) -> Option<u128> {
    if digits.len() != BASE62_DIGITS {
        return None;
    }
    digits.bytes().try_fold(0u128, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'A'..=b'Z' => byte - b'A' + 10,
            b'a'..=b'z' => byte - b'a' + 36,
            _ => return None,
        };
        number.checked_mul(62)?.checked_add(digit.into())
    })
}

fn uuid(text: &str) -> Option<u128> {
    let (mut number, mut digits) = (0u128, 0);
    for char in text.chars().filter(|&char| char != '-') {
        number = number << 4 | u128::from(char.to_digit(16)?);
        digits += 1;
    }
    (digits == HEX_DIGITS).then_some(number)
}

/// A SHA-256 in hex.
pub(crate) fn sha256(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_id_are_the_same_number() {
        let number = 0x019a_d2f0_1111_7000_8000_0000_0000_0002;
        assert_eq!(parse("019ad2f0-1111-7000-8000-000000000002"), Some(number));
        assert_eq!(parse("019ad2f0111170008000000000000002"), Some(number));
        assert_eq!(parse("evt_0000000000000000000010"), Some(62));
        assert_eq!(parse("evt_000000000000000000001-"), None);
        assert_eq!(parse("evt_1"), None);
        assert_eq!(parse("evt_zzzzzzzzzzzzzzzzzzzzzz"), None, "more than 128 bits");
        assert_eq!(parse("019ad2f0"), None);
        assert_eq!(sha256("zz"), None);
        assert_eq!(sha256(&"ab".repeat(32)), Some([0xab; 32]));
    }
}
