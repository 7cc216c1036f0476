//! `config.json` of a spec: what the readers of the families read, written the other way round.
//!
//! Only keys that the spec states or that the class needs, in the spelling of transformers 5; nothing about training,
//! dropout or tokens. A writer looks at one layer where the class has one key for all: what such a configuration loses is
//! found by reading it again and asking [`super::first_difference`]. It knows nothing of tensors.

mod dense;
mod gemma;
mod keys;
mod mixers;
mod moe;
mod rope;
mod table;

pub(crate) use table::{is_class_of, to_config};
