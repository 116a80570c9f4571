//! Look-up tables keyed by ids that are uniform already: a fixed, cheap hasher instead of SipHash, so that equal
//! inputs give equal tables. Nothing iterates these maps where the order could reach an effect.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map for look-ups only.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// Folds words with a multiplication; ids are hashes or random, no input is chosen by an attacker who could see time.
#[derive(Default, Clone, Copy)]
pub(crate) struct Fold(u64);

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl Fold {
    fn word(&mut self, word: u64) {
        let wide = u128::from(self.0.rotate_left(23) ^ word) * u128::from(MIX);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0u8; 8];
            word.copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        for &byte in chunks.remainder() {
            self.word(u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.word(u64::from(number));
    }

    fn write_usize(&mut self, _length: usize) {
        // Only the length prefix of fixed-size ids: says nothing.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A fixed 64-bit hash of an id and a number, for jitter.
pub(crate) fn of(id: u128, number: u32) -> u64 {
    let mut fold = Fold::default();
    fold.word(id as u64);
    fold.word((id >> 64) as u64);
    fold.word(u64::from(number));
    fold.word(MIX);
    fold.finish()
}
