//! Kinds that are stored as words: one list of them gives both ways.

/// `stored_as!(Kind { Variant = "word" })`: `as_str` and its inverse `parse`.
macro_rules! stored_as {
    ($name:ident { $($variant:ident = $text:literal),+ }) => {
        impl $name {
            /// As stored and shown.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The inverse of `as_str`.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}
pub(crate) use stored_as;
