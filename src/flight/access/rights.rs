//! What a role may do, and which files clients may name.

use std::error::Error;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::execution::context::{SQLOptions, SessionContext};
use datafusion::logical_expr::{DdlStatement, Expr, LogicalPlan};
use datafusion::sql::parser::Statement as SqlStatement;
use forebay_planner::sql::job_statement::JobStatement;
use forebay_planner::sql::statement::{ModelStatement, Statement};
use url::Url;

use super::users::{Identity, Role};

/// Folders and URLs below which clients may name files.
#[derive(Clone, Debug)]
pub(in crate::flight) enum Roots {
    /// Whatever the server can reach.
    Anything,
    /// What is below one of these; URLs end with a slash.
    Below(Vec<Url>),
}

impl Roots {
    /// What is below these folders and URLs.
    ///
    /// # Errors
    /// If one is neither a folder nor a URL.
    pub(in crate::flight) fn below(roots: &[String]) -> Result<Self> {
        let root = |text: &String| {
            let mut url = location(text)?;
            if !url.path().ends_with('/') {
                url.set_path(&format!("{}/", url.path()));
            }
            Ok(url)
        };
        Ok(Self::Below(roots.iter().map(root).collect::<Result<_>>()?))
    }

    /// Whether a client may name this location.
    ///
    /// # Errors
    /// If it may not.
    pub(in crate::flight) fn check(&self, text: &str) -> Result<()> {
        let Self::Below(roots) = self else { return Ok(()) };
        let url = location(text)?;
        let is_below = |root: &Url| {
            url.scheme() == root.scheme()
                && url.authority() == root.authority()
                && (url.path().starts_with(root.path())
                    || format!("{}/", url.path()) == root.path())
        };
        if roots.iter().any(is_below) {
            return Ok(());
        }
        denied(format!(
            "'{text}' is outside of the folders that this server lets clients name (--root)"
        ))
    }
}

/// A location as a URL without `..` and links, so that what it begins with is where it is.
fn location(text: &str) -> Result<Url> {
    // Whoever opens it may trim it, or take the tilde for a home folder.
    if text.trim() != text || text.starts_with('~') {
        return plan_err!("'{text}' begins with a tilde, or has white space around it");
    }
    if let Ok(url) = Url::parse(text) {
        let decoded = url.path().to_lowercase();
        if decoded.contains("%2e") || decoded.contains("%2f") || decoded.contains("%5c") {
            return plan_err!("'{text}' has an encoded dot or slash in it");
        }
        if url.scheme() != "file" {
            return Ok(url);
        }
        let Ok(path) = url.to_file_path() else { return plan_err!("'{text}' names no file") };
        return file_url(text, &path);
    }
    file_url(text, Path::new(text))
}

fn file_url(text: &str, path: &Path) -> Result<Url> {
    let absolute = std::path::absolute(path)?;
    let mut plain = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
        // Link by link: `..` behind one leads to where that is.
        if let Ok(real) = plain.canonicalize() {
            plain = real;
        }
    }
    let url = if text.ends_with('/') {
        Url::from_directory_path(&plain)
    } else {
        Url::from_file_path(&plain)
    };
    url.or_else(|()| plan_err!("'{text}' is not an absolute path"))
}

/// Whether a statement may be run at all by this client, as far as its text says.
///
/// # Errors
/// If it may not: what is missing.
pub(in crate::flight) fn check_statement(
    who: &Identity,
    roots: &Roots,
    statement: &Statement,
) -> Result<()> {
    match statement {
        Statement::Model(statement) => check_model_statement(who, roots, statement),
        Statement::Job(JobStatement::Submit(statement)) => {
            check_statement(who, roots, &Statement::Sql(statement.clone()))
        }
        // Whose job it is, is known where it is looked for.
        Statement::Job(_) => Ok(()),
        Statement::Sql(statement) => match statement.as_ref() {
            SqlStatement::CreateExternalTable(table) => {
                needs(who, Role::Write, "CREATE EXTERNAL TABLE")?;
                table.locations.iter().try_for_each(|location| roots.check(location))
            }
            SqlStatement::CopyTo(copy) => {
                needs(who, Role::Write, "COPY")?;
                roots.check(&copy.target)
            }
            SqlStatement::Explain(explain) => {
                check_statement(who, roots, &Statement::Sql(explain.statement.clone()))
            }
            _ => Ok(()),
        },
    }
}

fn check_model_statement(who: &Identity, roots: &Roots, statement: &ModelStatement) -> Result<()> {
    match statement {
        ModelStatement::Show
        | ModelStatement::ShowCreate { .. }
        | ModelStatement::Describe { .. } => Ok(()),
        ModelStatement::Create(create) => {
            needs(who, Role::Admin, "CREATE MODEL")?;
            create.location.iter().try_for_each(|location| roots.check(location))
        }
        ModelStatement::Alter { .. } => needs(who, Role::Admin, "ALTER MODEL"),
        ModelStatement::Drop { .. } => needs(who, Role::Admin, "DROP MODEL"),
    }
}

/// Whether a plan may be run by this client.
///
/// # Errors
/// If it may not: what is missing.
pub(in crate::flight) fn check_plan(who: &Identity, plan: &LogicalPlan) -> Result<()> {
    check_definition(who, plan)?;
    if who.role >= Role::Write {
        return Ok(());
    }
    let reads = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false);
    match reads.verify_plan(plan) {
        Ok(()) => Ok(()),
        Err(_) => needs(who, Role::Write, "this statement"),
    }
}

/// Schemas and databases hold what is everybody's.
fn check_definition(who: &Identity, plan: &LogicalPlan) -> Result<()> {
    // PREPARE and EXPLAIN have it below them.
    let needed = plan.apply(|node| match node {
        LogicalPlan::Ddl(DdlStatement::DropCatalogSchema(_)) => {
            needs(who, Role::Admin, "DROP SCHEMA").map(|()| TreeNodeRecursion::Continue)
        }
        LogicalPlan::Ddl(DdlStatement::CreateCatalog(_)) => {
            needs(who, Role::Admin, "CREATE DATABASE").map(|()| TreeNodeRecursion::Continue)
        }
        _ => Ok(TreeNodeRecursion::Continue),
    });
    needed.map(|_| ())
}

/// Takes from a session the functions that read whatever they are told to, if it may not.
///
/// # Errors
/// If a function cannot be taken away.
pub(in crate::flight) fn confine(
    context: &SessionContext,
    who: &Identity,
    roots: &Roots,
) -> Result<()> {
    let is_free = matches!(roots, Roots::Anything) && who.role >= Role::Write;
    if is_free {
        return Ok(());
    }
    // Their URLs are values, which workers see first.
    for name in ["url_download", "try_url_download"] {
        context.deregister_udf(name);
    }
    let read_files = context.table_function("read_files")?;
    context.deregister_udtf("read_files");
    if who.role >= Role::Write {
        let below =
            BelowRoots { function: Arc::clone(read_files.function()), roots: roots.clone() };
        context.register_udtf("read_files", Arc::new(below));
    }
    Ok(())
}

/// A table function whose first argument names files.
#[derive(Debug)]
struct BelowRoots {
    function: Arc<dyn TableFunctionImpl>,
    roots: Roots,
}

impl TableFunctionImpl for BelowRoots {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        if let Some(Expr::Literal(pattern, _)) = args.exprs().first()
            && let Some(pattern) = pattern.try_as_str().flatten()
        {
            self.roots.check(pattern)?;
        }
        self.function.call_with_args(args)
    }
}

fn needs(who: &Identity, role: Role, what: &str) -> Result<()> {
    if who.role >= role {
        return Ok(());
    }
    denied(format!("{what} needs the role {role}; '{}' has {}", who.name, who.role))
}

/// What a client may not do.
#[derive(Debug)]
pub(in crate::flight) struct Denied(String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Denied {}

fn denied<T>(why: String) -> Result<T> {
    Err(DataFusionError::External(Box::new(Denied(why))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_the_roots_can_be_named() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(folder.path().join("secret"), "").unwrap();
        std::os::unix::fs::symlink(folder.path(), inside.join("link")).unwrap();
        let root = inside.display().to_string();
        let roots = Roots::below(&[root.clone(), "s3://bucket/data".to_owned()]).unwrap();
        let good = ["", "/", "/t.parquet", "/deep/t/", "/a/../t"].map(|end| format!("{root}{end}"));
        let remote = ["s3://bucket/data/t", "s3://bucket/data"].map(str::to_owned);
        for text in good.iter().chain(&remote) {
            roots.check(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        roots.check(&format!("file://{root}/t")).unwrap();
        let bad = ["/../secret", "/link/secret", "/link/../secret", "-too", "/../inside-too"];
        let bad = bad.map(|end| format!("{root}{end}"));
        let more = [
            "/etc/passwd".to_owned(),
            "file:///etc/passwd".to_owned(),
            format!("file://{root}/%2e%2e/secret"),
            "s3://bucket/database".to_owned(),
            "s3://bucket/data/../x".to_owned(),
            " /etc/passwd".to_owned(),
            format!(" {root}/t"),
            "~/secret".to_owned(),
            "s3://other/data/t".to_owned(),
            "http://bucket/data/t".to_owned(),
        ];
        for text in bad.iter().chain(&more) {
            let error = roots.check(text).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains(text)), "{text} is allowed");
        }
        Roots::Anything.check("/etc/passwd").unwrap();
    }
}
