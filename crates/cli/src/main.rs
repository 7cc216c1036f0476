//! The larql command.
fn main() {}
