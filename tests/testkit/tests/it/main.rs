//! The test support itself: servers that come back, processes that obey, a receiver that misbehaves as told.

mod receiver;
mod stack;
