//! A session: the open model, its relations, and the execution of statements one after another.
//!
//! Everything that depends on the model lives beside it, so that opening another one leaves nothing of the first behind.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use larql_engine::{Interrupt, Profile, Runtime};
use larql_lql::Statement;

use crate::database::Database;
use crate::error::DbError;
use crate::exec;
use crate::plan::Plan;
use crate::plan::bind::Binder;
use crate::progress::OnProgress;
use crate::relations::Relations;
use crate::rows::Rows;

/// What a session works with.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Threads that work.
    pub n_threads: NonZeroUsize,
    /// The arithmetic of runs.
    pub profile: Profile,
    /// Ends the current statement when raised.
    pub interrupt: Interrupt,
    /// The folder whose models `SHOW MODELS` lists.
    pub models_dir: Option<PathBuf>,
}

/// The open model and what statements need besides it.
#[derive(Debug)]
pub struct Session {
    pub(crate) runtime: Runtime,
    pub(crate) models_dir: Option<PathBuf>,
    pub(crate) open: Option<Open>,
    shipped: Relations,
}

/// The open model and all state that belongs to it.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) database: Database,
    pub(crate) relations: Relations,
}

impl Session {
    /// A session without a model.
    pub fn new(options: SessionOptions) -> Self {
        let SessionOptions {
            n_threads,
            profile,
            interrupt,
            models_dir,
        } = options;
        Self {
            runtime: Runtime::new(n_threads, profile, interrupt),
            models_dir,
            open: None,
            shipped: Relations::shipped(),
        }
    }

    /// Opens a model and then forgets the one before, as `USE` does.
    ///
    /// # Errors
    /// If the model cannot be opened; the one before stays open then.
    pub fn open(&mut self, path: &Path) -> Result<(), DbError> {
        let database = Database::open(path)?;
        let relations = exec::relations::of_database(&database)?;
        self.open = Some(Open {
            database,
            relations,
        });
        Ok(())
    }

    /// The open model.
    pub fn database(&self) -> Option<&Database> {
        self.open.as_ref().map(|open| &open.database)
    }

    /// The open model and what runs it.
    ///
    /// # Errors
    /// If no model is open.
    pub fn database_and_runtime(&mut self) -> Result<(&Database, &mut Runtime), DbError> {
        let open = self.open.as_ref().ok_or(DbError::NoModel)?;
        Ok((&open.database, &mut self.runtime))
    }

    /// The relations that can be asked: the shipped ones, and those made for the open model.
    pub fn relations(&self) -> &Relations {
        self.open
            .as_ref()
            .map_or(&self.shipped, |open| &open.relations)
    }

    /// Binds a statement without executing it.
    ///
    /// # Errors
    /// Says what cannot be executed, and where it stands.
    pub fn plan(&self, statement: &Statement) -> Result<Plan, DbError> {
        Binder {
            db: self.database(),
            relations: self.relations(),
            models_dir: self.models_dir.as_deref(),
        }
        .bind(statement)
    }

    /// Binds and executes a statement.
    ///
    /// # Errors
    /// As [`Self::plan`], or if the execution fails or is interrupted; nothing has changed then.
    pub fn execute(
        &mut self,
        statement: &Statement,
        on_progress: OnProgress<'_>,
    ) -> Result<Rows, DbError> {
        let plan = self.plan(statement)?;
        exec::run(self, &plan, on_progress)
    }
}
