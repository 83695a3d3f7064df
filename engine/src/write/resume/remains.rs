//! What a write that can be resumed has left, for whoever keeps its name.

use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::ObjectStore;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::left::{alone, end, stands};
use super::pieces::{Inputs, Piece};
use super::record;
use crate::delta::Log;
use crate::write::begun::Write;
use crate::write::delta_commit;
use crate::write::publish::decision;
use crate::write::staging::Staging;
use crate::write::target::{Target, is_local, url_of};

/// The staging folder of a write that can be resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    store: String,
    folder: String,
}

/// What of it would be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Whether there is a folder at all.
    pub is_there: bool,
    /// Whether all is visible already, or will be as soon as somebody goes on. Then all parts are kept.
    pub is_committed: bool,
    /// Parts that are kept.
    pub parts: usize,
    /// Their files.
    pub files: usize,
    /// Their rows.
    pub rows: u64,
    /// Bytes of the inputs that they cover.
    pub bytes: u64,
    /// Parts that are there, and not kept.
    pub unfit: usize,
    /// Parts that are missing.
    pub missing: usize,
    /// Bytes of the inputs that these would cover.
    pub missing_bytes: u64,
    /// Files and rows of what was made of all parts together, if it is there.
    pub rest: Option<(usize, u64)>,
}

/// What of a write could be kept, for [`Remains::overview`].
#[derive(Clone, Copy, Debug)]
pub struct Looked<'a> {
    /// What is written.
    pub target: &'a Target,
    /// What is read in pieces.
    pub inputs: &'a Inputs,
    /// Of all that makes the rows of a piece what they are.
    pub fingerprint: &'a str,
    /// The same of what is made of all parts together, if something is.
    pub rest: Option<&'a str>,
    /// Bytes of the inputs of a part.
    pub part_bytes: u64,
}

impl Remains {
    /// Begins a write that can be resumed, of which nothing is written yet.
    ///
    /// # Errors
    /// Whatever would keep the write from succeeding, as far as it can be known.
    pub async fn begin(target: &Arc<Target>, context: &Arc<TaskContext>) -> Result<Self> {
        let staging = Write::begin_resumable(Arc::clone(target), context).await?;
        let (store, folder) = (target.store().as_str().to_owned(), staging.folder().to_string());
        Ok(Self { store, folder })
    }

    /// Where it is, for people.
    pub fn url(&self) -> String {
        format!("{}{}", self.store, self.folder)
    }

    pub(in crate::write) fn staging(&self) -> Result<Staging> {
        let store = ObjectStoreUrl::parse(&self.store)?;
        let folder = Path::parse(&self.folder).map_err(|error| {
            exec_datafusion_err!("the staging folder '{}': {error}", self.folder)
        })?;
        Ok(Staging::at(folder, is_local(&store)))
    }

    /// The same, for whoever goes on and writes there.
    ///
    /// # Errors
    /// If it is that of a write to somewhere else: what is moved would be moved there.
    pub(in crate::write) fn staging_of(&self, target: &Target) -> Result<Staging> {
        let staging = self.staging()?;
        let (parent, place) = (staging.parent(), target.place());
        // A folder that was not there when the write began is renamed to come beside its own.
        let is_beside = target.is_new && place.parent().is_some_and(|beside| beside == parent);
        if target.store().as_str() == self.store && (parent == *place || is_beside) {
            return Ok(staging);
        }
        exec_err!(
            "what the job has written is in '{}', and would not go to '{}': FORGET JOB, and submit the statement \
             again",
            self.url(),
            target.name()
        )
    }

    fn store(&self, runtime: &RuntimeEnv) -> Result<Arc<dyn ObjectStore>> {
        runtime.object_store(ObjectStoreUrl::parse(&self.store)?)
    }

    /// What would be kept, and what would be computed; changes nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn overview(&self, of: Looked<'_>, context: &TaskContext) -> Result<Overview> {
        let Looked { target, inputs, fingerprint, rest, part_bytes } = of;
        let (store, staging) = (self.store(&context.runtime_env())?, self.staging()?);
        if !staging.is_resumable(store.as_ref()).await? {
            return Ok(Overview::default());
        }
        let decided = decision(&store, &staging).await?;
        let transaction = delta_commit::begin(target, &staging, context).await?;
        let (place, transaction) = (target.place(), transaction.as_ref());
        if stands(&store, &staging, place, transaction, decided.as_ref()).await? {
            // Where its files are by now is nobody's business.
            let sum = record::sum(store.as_ref(), &staging, rest.is_some()).await?;
            let record::Sum { parts, files, rows } = sum;
            return Ok(Overview {
                is_there: true,
                is_committed: true,
                parts,
                files,
                rows,
                ..Overview::default()
            });
        }
        let wanted = record::Wanted { fingerprint, rest, inputs };
        let found = record::read(&store, &staging, wanted).await?;
        let kept = &found.kept;
        let missing = found.missing(inputs);
        Ok(Overview {
            is_there: true,
            is_committed: false,
            parts: kept.len(),
            files: kept.iter().map(|part| part.files.len()).sum(),
            rows: kept.iter().map(record::Part::rows).sum(),
            bytes: kept.iter().flat_map(|part| &part.pieces).map(Piece::bytes).sum(),
            unfit: found.unfit.len(),
            missing_bytes: missing.iter().map(Piece::bytes).sum(),
            missing: inputs.parts(missing, part_bytes).len(),
            rest: found.rest.as_ref().map(|made| (made.files.len(), made.rows())),
        })
    }

    /// Removes all of it, when nobody is at work there. A commit that was decided is completed first, as far as its
    /// files are still there.
    ///
    /// # Errors
    /// Those of the store, and if the log of a Delta table cannot be read.
    pub async fn remove(&self, runtime: &RuntimeEnv) -> Result<()> {
        let (store, staging) = (self.store(runtime)?, self.staging()?);
        let _alone = alone(&staging).await;
        let log = || {
            let table = url_of(&ObjectStoreUrl::parse(&self.store)?, &staging.parent())?;
            Log::new(runtime, &table)
        };
        end(&store, &staging, log).await?;
        staging.remove(&store).await
    }
}
