//! The log on standard error: what Forebay says through `tracing` and its libraries through `log`,
//! in lines of one form:
//!
//! ```text
//! 2026-11-21T22:05:57.123456Z INFO  forebay_scheduler::coordinator::job job=038FYY unit=1.4: runs again: …
//! ```
//!
//! That is time, level, module, what it is about, and what happened. What it is about are the fields
//! of the spans that the event is in, then its own.

use std::any::Any;
use std::fmt::{self, Display, Write};

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::FutureExt;
use futures::future::BoxFuture;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Instrument, Span, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// What is logged, the first that is set: `warn,forebay_scheduler=debug`.
const VARIABLES: [&str; 2] = ["FOREBAY_LOG", "RUST_LOG"];

/// What is logged unless one of them says otherwise. Ballista calls it an error that a task ends
/// after its job, which every cancelled job's tasks do, and logs each failed query on the scheduler. What is
/// wrong with the log of a Delta table, and writers that meet, are the statement's to say.
const LOGGED: &str = "warn,ballista_scheduler::state::task_manager=off,\
                      ballista_scheduler::scheduler_server::query_stage_scheduler=off,\
                      buoyant_kernel=off,deltalake_core=off";

/// Under which name events are that came through `log`: which of those are wanted is asked before.
const BRIDGED: &str = "forebay::logging::bridged";

/// The field with the module that such an event is from.
const MODULE: &str = "log.module";

/// Logs from now on. A second call changes nothing.
pub(crate) fn start() {
    let (wanted, refused) = wanted(|variable| std::env::var(variable).ok());
    let bridge = Bridge { wanted: wanted.clone() };
    let level = match most(&wanted) {
        LevelFilter::OFF => log::LevelFilter::Off,
        LevelFilter::ERROR => log::LevelFilter::Error,
        LevelFilter::WARN => log::LevelFilter::Warn,
        LevelFilter::INFO => log::LevelFilter::Info,
        LevelFilter::DEBUG => log::LevelFilter::Debug,
        LevelFilter::TRACE => log::LevelFilter::Trace,
    };
    if tracing::subscriber::set_global_default(subscriber(wanted, std::io::stderr)).is_err() {
        return;
    }
    if log::set_boxed_logger(Box::new(bridge)).is_ok() {
        log::set_max_level(level);
    }
    set_join_set_tracer(&InSpan).ok();
    if let Some(why) = refused {
        tracing::warn!("{why}");
    }
}

/// What is to be logged, and what was asked for in vain.
fn wanted(variable: impl Fn(&str) -> Option<String>) -> (Targets, Option<String>) {
    let usual = || LOGGED.parse().unwrap_or_default();
    let set = |name: &&str| variable(name).filter(|text| !text.trim().is_empty());
    let Some((name, text)) = VARIABLES.iter().find_map(|name| Some((name, set(name)?))) else {
        return (usual(), None);
    };
    match text.parse() {
        Ok(wanted) => (wanted, None),
        Err(error) => {
            let why = format!(
                "{name}='{text}' is ignored: {error}; expected levels, of all or of a module, such \
                 as warn,forebay_scheduler=debug"
            );
            (usual(), Some(why))
        }
    }
}

/// The highest level that something is logged at.
fn most(wanted: &Targets) -> LevelFilter {
    let levels = wanted.iter().map(|(_, level)| level).chain(wanted.default_level());
    levels.max().unwrap_or(LevelFilter::OFF)
}

fn subscriber<W>(wanted: Targets, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines =
        tracing_subscriber::fmt::layer().event_format(Lines).with_ansi(false).with_writer(writer);
    tracing_subscriber::registry().with(wanted.with_target(BRIDGED, LevelFilter::TRACE)).with(lines)
}

/// Takes what libraries say through `log`. (`tracing-log` does the same, and turns on a feature of
/// `tracing` with which half of all dependencies are built anew.)
struct Bridge {
    wanted: Targets,
}

impl log::Log for Bridge {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let level = match metadata.level() {
            log::Level::Error => tracing::Level::ERROR,
            log::Level::Warn => tracing::Level::WARN,
            log::Level::Info => tracing::Level::INFO,
            log::Level::Debug => tracing::Level::DEBUG,
            log::Level::Trace => tracing::Level::TRACE,
        };
        self.wanted.would_enable(metadata.target(), &level)
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // An event's level is fixed where it is written.
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(
                    target: BRIDGED,
                    tracing::Level::$level,
                    { MODULE } = record.target(),
                    "{}",
                    record.args()
                )
            };
        }
        match record.level() {
            log::Level::Error => event!(ERROR),
            log::Level::Warn => event!(WARN),
            log::Level::Info => event!(INFO),
            log::Level::Debug => event!(DEBUG),
            log::Level::Trace => event!(TRACE),
        }
    }

    fn flush(&self) {}
}

/// What a task of a query spawns belongs to it.
struct InSpan;

impl JoinSetTracer for InSpan {
    fn trace_future(
        &self,
        future: BoxFuture<'static, Box<dyn Any + Send>>,
    ) -> BoxFuture<'static, Box<dyn Any + Send>> {
        future.in_current_span().boxed()
    }

    fn trace_block(
        &self,
        block: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
    ) -> Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> {
        let span = Span::current();
        Box::new(move || span.in_scope(block))
    }
}

/// One line per event.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let metadata = event.metadata();
        SystemTime.format_time(&mut writer)?;
        let module = said.module.as_deref().unwrap_or(metadata.target());
        write!(writer, " {:<5} {module}", metadata.level().as_str())?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
                write!(writer, " {fields}")?;
            }
        }
        writeln!(writer, "{}: {}", said.fields, said.message)
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    module: Option<String>,
    /// A space before each.
    fields: String,
    message: String,
}

impl Said {
    fn take(&mut self, name: &str, value: &dyn Display) {
        match name {
            "message" => self.message = value.to_string(),
            MODULE => self.module = Some(value.to_string()),
            // A string takes all that is written to it.
            _ => write!(self.fields, " {name}={value}").unwrap_or_default(),
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field.name(), &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field.name(), &format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::sync::Arc;

    use log::Log;

    use super::*;

    /// What is logged meanwhile, without the times.
    fn logged(wanted: &str, run: impl FnOnce()) -> Vec<String> {
        let mut file = tempfile::tempfile().unwrap();
        let writer: Arc<File> = Arc::new(file.try_clone().unwrap());
        let subscriber = subscriber(wanted.parse().unwrap(), writer);
        tracing::subscriber::with_default(subscriber, run);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn a_line_says_what_it_is_about_before_what_happened() {
        let found = logged("warn,deep=debug", || {
            let span = tracing::error_span!("task", job = %"j", stage = 1);
            let _entered = span.enter();
            tracing::warn!(target: "deep", block = %"1.4/2", "gone");
            tracing::info!(target: "shallow", "not wanted");
            tracing::warn!(target: "shallow", "{} words", 2);
        });
        assert_eq!(
            found,
            ["WARN  deep job=j stage=1 block=1.4/2: gone", "WARN  shallow job=j stage=1: 2 words"]
        );
    }

    #[test]
    fn what_libraries_say_is_in_the_same_lines_under_their_own_names() {
        let bridge = Bridge { wanted: "warn,library=info".parse().unwrap() };
        let found = logged("warn,library=info", || {
            let span = tracing::error_span!("task", job = %"j");
            let _entered = span.enter();
            for (target, level) in
                [("library::part", log::Level::Info), ("other", log::Level::Info)]
            {
                let record = log::Record::builder()
                    .target(target)
                    .level(level)
                    .args(format_args!("it says"))
                    .build();
                bridge.log(&record);
            }
        });
        assert_eq!(found, ["INFO  library::part job=j: it says"]);
    }

    #[test]
    fn the_first_variable_that_is_set_counts_and_one_that_is_wrong_is_said() {
        let both =
            |name: &str| Some(if name == "FOREBAY_LOG" { "debug" } else { "off" }.to_owned());
        assert_eq!(most(&wanted(both).0), LevelFilter::DEBUG);
        assert_eq!(most(&wanted(|_| Some(" ".to_owned())).0), LevelFilter::WARN);
        let (usual, refused) = wanted(|_| Some("forebay=loud".to_owned()));
        assert_eq!(most(&usual), LevelFilter::WARN);
        assert!(refused.unwrap().starts_with("FOREBAY_LOG='forebay=loud' is ignored: "));
    }
}
