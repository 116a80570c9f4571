//! From a tree to settings, past every fault: what serde refuses is reported, taken out, and the rest read again.

use super::SECTIONS;
use super::node::{Kind, Node, Step, Tree, path};
use super::problems::Problem;
use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, MapAccess, SeqAccess, Visitor,
};
use std::fmt;

/// At most this many faults are looked for: each costs one more reading of the tree.
const MAX_FAULTS: usize = 200;

/// Reads the settings; faults become problems and their values are replaced by defaults. `None` if there is no way
/// to go on.
pub(super) fn settle<T: DeserializeOwned>(tree: &Tree, problems: &mut Vec<Problem>) -> Option<T> {
    let mut root = tree.root.clone();
    for _ in 0..MAX_FAULTS {
        let fault = match T::deserialize(Reader(&root)) {
            Ok(settings) => return Some(settings),
            Err(fault) => fault,
        };
        let mut at = fault.at();
        let foreign = |steps: &[Step]| match steps {
            [Step::Key(key)] => SECTIONS.contains(&key.as_str()),
            _ => false,
        };
        let removed = match &fault.what {
            What::UnknownField(field) => {
                at.push(Step::Key(field.clone()));
                root.remove(&at)
            }
            What::MissingField(field) => {
                let table_removed = root.remove(&at);
                at.push(Step::Key((*field).to_owned()));
                table_removed
            }
            What::Other(_) => root.remove(&at),
        };
        // A section of another service in the common file is no fault.
        if !(matches!(fault.what, What::UnknownField(_)) && foreign(&at)) {
            let path = path(&at);
            problems.push(Problem { origin: tree.origin(&path), path, message: fault.to_string() });
        }
        if !removed {
            return None;
        }
    }
    None
}

/// Why serde refused, and where; the steps are collected from the inside out.
#[derive(Debug)]
struct Fault {
    what: What,
    outwards: Vec<Step>,
}

#[derive(Debug)]
enum What {
    UnknownField(String),
    MissingField(&'static str),
    Other(String),
}

impl Fault {
    fn new(what: What) -> Self {
        Self { what, outwards: Vec::new() }
    }

    fn wanted(want: &str, got: &Kind) -> Self {
        Self::new(What::Other(format!("expected {want}, found {}", got.name())))
    }

    fn within(mut self, step: Step) -> Self {
        self.outwards.push(step);
        self
    }

    fn at(&self) -> Vec<Step> {
        self.outwards.iter().rev().cloned().collect()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::UnknownField(_) => write!(f, "unknown setting"),
            What::MissingField(_) => write!(f, "is required"),
            What::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Fault {}

impl Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(What::Other(message.to_string()))
    }

    fn unknown_field(field: &str, _expected: &'static [&'static str]) -> Self {
        Self::new(What::UnknownField(field.to_owned()))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(What::MissingField(field))
    }

    /// Says what is wanted, not the value: it may be a secret.
    fn invalid_type(unexpected: serde::de::Unexpected<'_>, expected: &dyn Expected) -> Self {
        let got = match unexpected {
            serde::de::Unexpected::Bool(_) => "a boolean",
            serde::de::Unexpected::Signed(_) | serde::de::Unexpected::Unsigned(_) => "a number",
            serde::de::Unexpected::Float(_) => "a number with a point",
            serde::de::Unexpected::Str(_) => "a text",
            serde::de::Unexpected::Map => "a table",
            serde::de::Unexpected::Seq => "a list",
            _ => "nothing",
        };
        Self::new(What::Other(format!("expected {expected}, found {got}")))
    }

    fn invalid_value(_: serde::de::Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(What::Other(format!("expected {expected}")))
    }
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Nil => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Signed(_) | Self::Unsigned(_) => "a number",
            Self::Float(_) => "a number with a point",
            Self::Text(_) => "a text",
            Self::Table(_) => "a table",
            Self::List(_) => "a list",
        }
    }
}

/// A node as serde reads it. A text is read as a number or a boolean where one is wanted, and the other way round:
/// the environment has only texts, and YAML makes numbers of texts.
struct Reader<'a>(&'a Node);

impl Reader<'_> {
    fn integer<T: TryFrom<i64> + TryFrom<u64>>(&self) -> Result<T, Fault> {
        let number = match &self.0.kind {
            Kind::Signed(value) => T::try_from(*value).ok(),
            Kind::Unsigned(value) => T::try_from(*value).ok(),
            Kind::Text(text) => match (text.trim().parse::<i64>(), text.trim().parse::<u64>()) {
                (Ok(value), _) => T::try_from(value).ok(),
                (_, Ok(value)) => T::try_from(value).ok(),
                _ => return Err(Fault::wanted("a whole number", &self.0.kind)),
            },
            other => return Err(Fault::wanted("a whole number", other)),
        };
        let bits = size_of::<T>() * 8;
        number.ok_or_else(|| Fault::custom(format!("expected a whole number of {bits} bits")))
    }

    fn number(&self) -> Result<f64, Fault> {
        match &self.0.kind {
            Kind::Float(value) => Ok(*value),
            #[expect(clippy::cast_precision_loss, reason = "settings are small numbers")]
            Kind::Signed(value) => Ok(*value as f64),
            #[expect(clippy::cast_precision_loss, reason = "settings are small numbers")]
            Kind::Unsigned(value) => Ok(*value as f64),
            Kind::Text(text) => {
                text.trim().parse().map_err(|_| Fault::wanted("a number", &self.0.kind))
            }
            other => Err(Fault::wanted("a number", other)),
        }
    }

    fn text(&self) -> Result<String, Fault> {
        match &self.0.kind {
            Kind::Text(text) => Ok(text.clone()),
            Kind::Bool(value) => Ok(value.to_string()),
            Kind::Signed(value) => Ok(value.to_string()),
            Kind::Unsigned(value) => Ok(value.to_string()),
            Kind::Float(value) => Ok(value.to_string()),
            other => Err(Fault::wanted("a text", other)),
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty;)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            visitor.$visit(self.integer::<$type>()?)
        }
    )* };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    integers! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.kind {
            Kind::Nil => visitor.visit_unit(),
            Kind::Bool(value) => visitor.visit_bool(*value),
            Kind::Signed(value) => visitor.visit_i64(*value),
            Kind::Unsigned(value) => visitor.visit_u64(*value),
            Kind::Float(value) => visitor.visit_f64(*value),
            Kind::Text(text) => visitor.visit_str(text),
            Kind::Table(table) => visitor.visit_map(Entries { rest: table.iter(), value: None }),
            Kind::List(list) => visitor.visit_seq(Elements(list.iter())),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let value = match &self.0.kind {
            Kind::Bool(value) => Some(*value),
            Kind::Text(text) => text.trim().to_lowercase().parse().ok(),
            _ => None,
        };
        visitor.visit_bool(value.ok_or_else(|| Fault::wanted("true or false", &self.0.kind))?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_f64(self.number()?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_f64(self.number()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.kind {
            Kind::Nil => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    /// A list; a text is a list whose elements commas part, so that the environment can give one.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.kind {
            Kind::List(list) => visitor.visit_seq(Elements(list.iter())),
            Kind::Text(text) => {
                let list: Vec<(usize, Node)> = text
                    .split(',')
                    .map(str::trim)
                    .filter(|text| !text.is_empty())
                    .map(|text| Node {
                        origin: self.0.origin.clone(),
                        kind: Kind::Text(text.to_owned()),
                    })
                    .enumerate()
                    .collect();
                // The text is one value: a bad element is a fault of the whole.
                visitor.visit_seq(Elements(list.iter())).map_err(|mut fault| {
                    fault.outwards.clear();
                    fault
                })
            }
            other => Err(Fault::wanted("a list", other)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.0.kind {
            Kind::Table(_) => self.deserialize_any(visitor),
            other => Err(Fault::wanted("a table", other)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.0.kind {
            Kind::Table(table) if table.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Entries {
                    rest: table.iter(),
                    value: None,
                }))
            }
            Kind::Text(text) if variants.contains(&text.as_str()) => {
                visitor.visit_enum(StringDeserializer::new(text.clone()))
            }
            _ => Err(Fault::custom(format!("expected one of {}", variants.join(", ")))),
        }
    }

    serde::forward_to_deserialize_any! {
        char bytes byte_buf unit unit_struct tuple tuple_struct map identifier ignored_any
    }
}

struct Elements<'a>(std::slice::Iter<'a, (usize, Node)>);

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some((index, node)) = self.0.next() else { return Ok(None) };
        seed.deserialize(Reader(node)).map(Some).map_err(|fault| fault.within(Step::Index(*index)))
    }
}

struct Entries<'a> {
    rest: std::collections::btree_map::Iter<'a, String, Node>,
    value: Option<(&'a String, &'a Node)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.value = self.rest.next();
        match self.value {
            Some((key, _)) => seed.deserialize(StringDeserializer::new(key.clone())).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, node) =
            self.value.take().ok_or_else(|| Fault::custom("a value without a key"))?;
        seed.deserialize(Reader(node)).map_err(|fault| fault.within(Step::Key(key.clone())))
    }
}
