//! 128-bit numbers as 22 base62 digits: fixed width and an alphabet in ASCII order, so that text sorts as the number.

/// Digits of an encoded id.
pub(crate) const WIDTH: usize = 22;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

pub(crate) fn encode(mut number: u128) -> String {
    let mut digits = [b'0'; WIDTH];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(number % 62) as usize];
        number /= 62;
    }
    digits.iter().map(|&digit| char::from(digit)).collect()
}

pub(crate) fn decode(text: &str) -> Option<u128> {
    if text.len() != WIDTH {
        return None;
    }
    text.bytes().try_fold(0u128, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'A'..=b'Z' => byte - b'A' + 10,
            b'a'..=b'z' => byte - b'a' + 36,
            _ => return None,
        };
        number.checked_mul(62)?.checked_add(u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_comes_back(number: u128) {
            prop_assert_eq!(decode(&encode(number)), Some(number));
        }

        #[test]
        fn text_sorts_as_the_number(a: u128, b: u128) {
            prop_assert_eq!(encode(a).cmp(&encode(b)), a.cmp(&b));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,40}") {
            let _ = decode(&text);
        }
    }

    #[test]
    fn a_number_beyond_128_bits_is_refused() {
        assert_eq!(decode("zzzzzzzzzzzzzzzzzzzzzz"), None);
    }
}
