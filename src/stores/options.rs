//! What a statement says about the store that it names: `OPTIONS ('aws.region' …)`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::Value;
use datafusion_cli::cli_context::CliSessionContext;
use forebay_planner::sql::statement::Statement;
use url::Url;

use super::on_demand::OnDemand;
use super::open::check_options;
use super::place::Place;

/// Registers the store that a statement names, if it has options for it. They hold for what names the
/// same bucket later.
///
/// # Errors
/// If there are no such stores, or the options do not fit each other.
pub(crate) fn open_with_options(session: &SessionContext, statement: &Statement) -> Result<()> {
    let Statement::Sql(statement) = statement else { return Ok(()) };
    let (locations, options) = match statement.as_ref() {
        SqlStatement::CreateExternalTable(table) => (table.locations.as_slice(), &table.options),
        SqlStatement::CopyTo(copy) => (std::slice::from_ref(&copy.target), &copy.options),
        _ => return Ok(()),
    };
    let options: Vec<_> = options.iter().map(text).filter(|(key, _)| is_of_store(key)).collect();
    if options.is_empty() {
        return Ok(());
    }
    for url in locations.iter().filter_map(|location| Url::parse(location).ok()) {
        // Unknown to DataFusion unless it is told.
        session.register_table_options_extension_from_scheme(url.scheme());
        let place = Place::of(&url, options.clone())?;
        check_options(&place)?;
        session.register_object_store(&url, Arc::new(OnDemand::new(place)));
    }
    Ok(())
}

fn text((key, value): &(String, Value)) -> (String, String) {
    let text = value.clone().into_string().unwrap_or_else(|| value.to_string());
    (key.to_lowercase(), text)
}

fn is_of_store(key: &str) -> bool {
    key.starts_with("aws.") || key.starts_with("gcp.")
}
