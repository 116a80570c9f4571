//! Why somebody does what cannot be undone, as the audit log keeps it. The tables' CHECKs count the same characters.

/// Characters of a reason at most.
pub const MAX_REASON: usize = 1_000;

/// Whether `text` can be a reason: 1 to [`MAX_REASON`] characters that PostgreSQL can hold, and not only blanks.
pub fn reason_is_valid(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= MAX_REASON && !text.contains('\0')
}

/// Whether it can be one that is shown in a line: without control characters.
pub fn reason_is_line(text: &str) -> bool {
    reason_is_valid(text) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_count_and_not_bytes() {
        let longest = "é".repeat(MAX_REASON);
        assert!(reason_is_valid(&longest) && reason_is_line(&longest));
        assert!(!reason_is_valid(&(longest + "é")));
        assert!(!reason_is_valid("") && !reason_is_valid(" \n") && !reason_is_valid("a\0b"));
        assert!(reason_is_valid("two\nlines") && !reason_is_line("two\nlines"));
    }
}
