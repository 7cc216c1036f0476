//! `larql demo`.

use crate::Outcome;
use crate::args::DemoArgs;
use crate::context::Context;
use crate::error::CliError;

/// TEMP
pub(crate) fn demo(_context: &Context, _args: &DemoArgs) -> Result<Outcome, CliError> {
    Err(CliError::failure("todo", "not yet"))
}
