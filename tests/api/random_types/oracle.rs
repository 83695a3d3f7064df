//! Runs a query in all ways, and compares types and rows with those of plain DataFusion.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{DataFrame, SessionContext};
use forebay::ForebayContext;

use super::models::Models;
use super::writer::Writer;
use crate::api::random::count::Judge;
use crate::api::random::oracle::{Case, Rows, Verdict, bounded, finding};
use crate::api::random::settings::{self, Choice};
use crate::api::random::writer::{By, Written};

/// Where queries run.
pub(super) struct World {
    /// DataFusion without Forebay.
    pub(super) plain: SessionContext,
    /// The same with the types of a cluster's sessions, which read texts and not views of texts.
    pub(super) plain_without_views: SessionContext,
    pub(super) here: ForebayContext,
    /// Two workers.
    pub(super) cluster: ForebayContext,
    pub(super) models: Models,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In one process.
    Here,
    /// The same, with the physical plan as bytes and back.
    Sent,
    Cluster,
}

impl Judge for World {
    async fn judge(&self, case: &Case) -> Verdict {
        let [model, lookup] =
            [By::Model, By::Lookup].map(|by| Writer::write(&case.query, by, &self.models));
        let mut verdict = Verdict::Equal;
        for way in [Way::Here, Way::Sent, Way::Cluster] {
            let expected = match self.alone(way, &[], &lookup).await {
                Ok(rows) => rows,
                Err(error) => return Verdict::Refused(format!("{}\n{error}", lookup.sql)),
            };
            let options = options(way, &case.settings);
            let found = self.run(way, &options, &model).await;
            if found.as_ref() == Ok(&expected) {
                continue;
            }
            // With the options that are DataFusion's alone.
            let alone = self.alone(way, &options, &lookup).await;
            if alone.as_ref() != Ok(&expected) {
                verdict = Verdict::NotOurs(finding(&lookup, &options, &expected, alone));
                continue;
            }
            let mut wrong = finding(&model, &options, &expected, found);
            let plan = self.plan(way, &options, &model).await;
            wrong.text = format!("{way:?}\n{}{plan}", wrong.text);
            return Verdict::Wrong(wrong);
        }
        verdict
    }
}

fn options(way: Way, settings: &[Choice]) -> Vec<Choice> {
    let is_known = |choice: &&Choice| way == Way::Cluster || settings::SETTINGS.contains(choice);
    settings.iter().filter(is_known).copied().collect()
}

impl World {
    async fn run(&self, way: Way, options: &[Choice], query: &Written) -> Rows {
        let session = self.session(way, options)?;
        let sql = query.sql.clone();
        let (schema, rows) = bounded(async move { read(session.sql(&sql).await?).await }).await?;
        texts(&schema, &rows, query.is_ordered)
    }

    fn session(&self, way: Way, options: &[Choice]) -> Result<ForebayContext, String> {
        let forebay = if way == Way::Cluster { &self.cluster } else { &self.here };
        let session = forebay.new_session().map_err(|error| error.to_string())?;
        prepare(session.session(), way, options);
        Ok(session)
    }

    /// In DataFusion alone.
    async fn alone(&self, way: Way, options: &[Choice], query: &Written) -> Rows {
        let plain = if way == Way::Cluster { &self.plain_without_views } else { &self.plain };
        let session = SessionContext::new_with_state(plain.state());
        let of_others = |choice: &&Choice| choice.0.starts_with("datafusion.");
        let options: Vec<Choice> = options.iter().filter(of_others).copied().collect();
        prepare(&session, way, &options);
        let sql = query.sql.clone();
        let (schema, rows) = bounded(async move { read(session.sql(&sql).await?).await }).await?;
        texts(&schema, &rows, query.is_ordered)
    }

    async fn plan(&self, way: Way, options: &[Choice], query: &Written) -> String {
        let Ok(session) = self.session(way, options) else { return String::new() };
        let sql = query.sql.clone();
        let plan = async move { session.sql(&sql).await?.create_physical_plan().await };
        match bounded(plan).await {
            Ok(plan) => displayable(plan.as_ref()).indent(true).to_string(),
            Err(error) => error,
        }
    }
}

fn prepare(session: &SessionContext, way: Way, options: &[Choice]) {
    if way == Way::Sent {
        crate::api::sending::send_plans(session);
    }
    let state = session.state_ref();
    let mut state = state.write();
    for (name, value) in options {
        state.config_mut().options_mut().set(name, value).unwrap();
    }
}

async fn read(frame: DataFrame) -> Result<(Schema, Vec<RecordBatch>), DataFusionError> {
    let schema = frame.schema().as_arrow().clone();
    Ok((schema, frame.collect().await?))
}

/// The types in front, as they were announced; each batch must have them.
fn texts(schema: &Schema, batches: &[RecordBatch], is_ordered: bool) -> Rows {
    let types = types(schema);
    let mut rows = vec![];
    for batch in batches {
        let found = self::types(&batch.schema());
        if found != types {
            return Err(format!("a batch has the types\n{found}\ninstead of\n{types}"));
        }
        rows.extend(values(batch));
    }
    if !is_ordered {
        rows.sort_unstable();
    }
    rows.insert(0, types);
    Ok(rows)
}

fn types(schema: &Schema) -> String {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| format!("{}: {}", field.name(), field.data_type()));
    fields.collect::<Vec<_>>().join(", ")
}

fn values(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let columns = batch.columns().iter();
    let columns: Vec<ArrayFormatter<'_>> =
        columns.map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    let row = |row: usize| {
        let values = columns.iter().map(|column| column.value(row).to_string());
        values.collect::<Vec<_>>().join(" | ")
    };
    (0..batch.num_rows()).map(row).collect()
}
