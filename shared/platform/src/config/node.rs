//! What the layers said before it becomes settings: a tree of texts and numbers in which each value knows its origin.

use super::Origins;
use super::problems::Origin;
use config::{Value, ValueKind};
use std::collections::BTreeMap;

/// A merged configuration.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    pub(super) root: Node,
}

/// One value.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) kind: Kind,
}

#[derive(Clone)]
pub(super) enum Kind {
    Nil,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    Table(BTreeMap<String, Node>),
    /// Elements with the index that they were written with: taking a bad one out renumbers nothing.
    List(Vec<(usize, Node)>),
}

impl Default for Node {
    fn default() -> Self {
        Self { origin: Origin::Default, kind: Kind::Table(BTreeMap::new()) }
    }
}

impl std::fmt::Debug for Node {
    /// Keys only: a value may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Table(table) => f.debug_map().entries(table).finish(),
            Kind::List(list) => f.debug_map().entries(list.iter().map(|(i, n)| (i, n))).finish(),
            _ => f.write_str("_"),
        }
    }
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// `sources[1].name` as steps.
pub(super) fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let mut pieces = part.split('[');
        if let Some(key) = pieces.next().filter(|key| !key.is_empty()) {
            steps.push(Step::Key(key.to_owned()));
        }
        steps.extend(
            pieces.filter_map(|piece| piece.trim_end_matches(']').parse().ok()).map(Step::Index),
        );
    }
    steps
}

/// Steps as `sources[1].name`.
pub(super) fn path(steps: &[Step]) -> String {
    steps.iter().fold(String::new(), |mut path, step| {
        match step {
            Step::Key(key) if path.is_empty() => path.push_str(key),
            Step::Key(key) => {
                path.push('.');
                path.push_str(key);
            }
            Step::Index(index) => path.push_str(&format!("[{index}]")),
        }
        path
    })
}

impl Tree {
    /// Where the value at `path` came from; a table or list came from where the first thing in it did.
    pub(super) fn origin(&self, path: &str) -> Origin {
        self.root.get(&steps(path)).map_or(Origin::Default, Node::first_origin)
    }
}

impl Tree {
    /// Takes out the top-level tables that are not among `known`, and names them.
    pub(super) fn take_other_than(&mut self, known: &[&str]) -> Vec<String> {
        let Kind::Table(table) = &mut self.root.kind else { return Vec::new() };
        let others: Vec<String> =
            table.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect();
        for other in &others {
            table.remove(other);
        }
        others
    }
}

impl Node {
    fn first_origin(&self) -> Origin {
        let first = |within: Option<&Self>| within.map(Self::first_origin);
        match &self.kind {
            Kind::Table(table) => first(table.values().next()),
            Kind::List(list) => first(list.first().map(|(_, node)| node)),
            _ => None,
        }
        .unwrap_or_else(|| self.origin.clone())
    }

    fn get(&self, steps: &[Step]) -> Option<&Self> {
        let Some((step, rest)) = steps.split_first() else { return Some(self) };
        match (&self.kind, step) {
            (Kind::Table(table), Step::Key(key)) => table.get(key)?.get(rest),
            (Kind::List(list), Step::Index(index)) => {
                list.iter().find(|(at, _)| at == index)?.1.get(rest)
            }
            _ => None,
        }
    }

    /// Takes the value at `steps` out; `false` if it is not there.
    pub(super) fn remove(&mut self, steps: &[Step]) -> bool {
        let Some((step, rest)) = steps.split_first() else { return false };
        match (&mut self.kind, step) {
            (Kind::Table(table), Step::Key(key)) if rest.is_empty() => table.remove(key).is_some(),
            (Kind::Table(table), Step::Key(key)) => {
                table.get_mut(key).is_some_and(|node| node.remove(rest))
            }
            (Kind::List(list), Step::Index(index)) if rest.is_empty() => {
                let before = list.len();
                list.retain(|(at, _)| at != index);
                list.len() < before
            }
            (Kind::List(list), Step::Index(index)) => list
                .iter_mut()
                .find(|(at, _)| at == index)
                .is_some_and(|(_, node)| node.remove(rest)),
            _ => false,
        }
    }

    /// Takes over what the `config` crate merged from `origins`.
    pub(super) fn from_value(value: Value, origins: &Origins, steps: &mut Vec<Step>) -> Self {
        let origin = match value.origin() {
            None => Origin::Default,
            Some(super::layers::ENVIRONMENT) => {
                let name = super::layers::variable(steps);
                match origins.environment.contains_key(&name) {
                    true => Origin::Variable(name),
                    false => Origin::Default,
                }
            }
            // The library's own name for the file is relative to the working directory.
            Some(_) => origins
                .file
                .as_ref()
                .map_or(Origin::Default, |file| Origin::File(file.display().to_string())),
        };
        let kind = match value.kind {
            ValueKind::Nil => Kind::Nil,
            ValueKind::Boolean(value) => Kind::Bool(value),
            ValueKind::I64(value) => Kind::Signed(value),
            ValueKind::U64(value) => Kind::Unsigned(value),
            ValueKind::I128(value) => Kind::Text(value.to_string()),
            ValueKind::U128(value) => Kind::Text(value.to_string()),
            ValueKind::Float(value) => Kind::Float(value),
            ValueKind::String(value) => Kind::Text(value),
            ValueKind::Table(table) => Kind::Table(
                table
                    .into_iter()
                    .map(|(key, value)| {
                        steps.push(Step::Key(key.clone()));
                        let node = Self::from_value(value, origins, steps);
                        steps.pop();
                        (key, node)
                    })
                    .collect(),
            ),
            ValueKind::Array(list) => Kind::List(
                list.into_iter()
                    .enumerate()
                    .map(|(index, value)| {
                        steps.push(Step::Index(index));
                        let node = Self::from_value(value, origins, steps);
                        steps.pop();
                        (index, node)
                    })
                    .collect(),
            ),
        };
        Self { origin, kind }
    }
}
