//! `larql extract`.

use crate::Outcome;
use crate::args::ExtractArgs;
use crate::context::Context;
use crate::error::CliError;

/// TEMP
pub(crate) fn extract(_context: &Context, _args: &ExtractArgs) -> Result<Outcome, CliError> {
    Err(CliError::failure("todo", "not yet"))
}
