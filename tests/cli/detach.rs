//! `forebay shell --detach`: jobs that run on when the shell has left.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::setup::{Home, Killed};

/// A server of its own, and how it is reached.
fn serve(home: &Home) -> (Killed, String) {
    let serve =
        ["serve", "--embedded", "--emulated-accelerators", "1", "--flight-sql", "127.0.0.1:0"];
    let mut server = Killed(home.command(&serve).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("Arrow Flight SQL on ")).unwrap();
    (server, format!("grpc://{}", line.rsplit(' ').next().unwrap()))
}

#[test]
fn a_statement_is_submitted_and_the_shell_leaves() {
    let home = Home::new();
    home.run(&["model", "add", "slow", &home.package("slow", 100)]).succeeds();
    let (_server, uri) = serve(&home);
    let detach = |sql: &[&str]| {
        let texts: Vec<&str> = sql.iter().flat_map(|text| ["-c", text]).collect();
        let shell = ["shell", "--connect", &uri, "--detach"];
        let ids = home.run(&[&shell[..], &texts].concat()).succeeds();
        ids.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let shell =
        |sql: &str| home.run(&["shell", "-q", "--format", "csv", "--connect", &uri, "-c", sql]);
    // The option is set for the session whose statement it is.
    let ids = detach(&[
        "SET datafusion.catalog.default_schema = 'information_schema'; -- for the next one
         SELECT DISTINCT table_name FROM tables WHERE table_name = 'tables'",
        "SELECT value, digest IS NOT NULL AS ok FROM ml_predict((SELECT value FROM range(0, 40)), \
         MODEL slow, DESCRIPTOR(value));",
    ]);
    let [listing, predicted] = &ids[..] else { panic!("{ids:?}") };
    let waited = shell(&format!("WAIT FOR JOB '{predicted}'")).succeeds();
    assert!(waited.starts_with("job_id,state,rows,seconds\n"), "{waited}");
    assert!(waited.contains(&format!("\n{predicted},finished,40,")), "{waited}");
    let result = format!("SELECT count(*) AS n, bool_and(ok) AS ok FROM job_result('{predicted}')");
    assert_eq!(shell(&result).succeeds(), "n,ok\n40,true\n");
    shell(&format!("WAIT FOR JOB '{listing}'")).succeeds();
    let result = format!("SELECT * FROM job_result('{listing}')");
    assert_eq!(shell(&result).succeeds(), "table_name\ntables\n");
    let jobs = shell("SELECT job_id, state FROM forebay.jobs ORDER BY job_id").succeeds();
    assert_eq!(jobs, format!("job_id,state\n{listing},finished\n{predicted},finished\n"));
    let forgotten = shell(&format!("FORGET JOB '{listing}'; CANCEL JOB '{listing}'"));
    assert_eq!(forgotten.status, Some(1));
    assert_eq!(forgotten.stdout, format!("job_id,state\n{listing},finished\n"));
    assert!(forgotten.stderr.contains(&format!("no detached job '{listing}'")));
}

#[test]
fn mistakes_are_told_before_the_shell_leaves_and_failures_to_who_waits() {
    let home = Home::new();
    let (_server, uri) = serve(&home);
    let detach = |arguments: &[&str]| {
        home.run(&[&["shell", "--connect", &uri, "--detach"], arguments].concat())
    };
    for (arguments, said) in [
        (&["-c", "SELECT nothing"][..], "nothing"),
        (&["-c", "SELEC 1"][..], "syntax error"),
        (&["-c", "SUBMIT SELECT 1"][..], "--detach submits statements itself"),
        (&[][..], "--detach submits the statements of -c and -f"),
    ] {
        let refused = detach(arguments).fails();
        assert!(refused.starts_with("error: ") && refused.contains(said), "{refused}");
    }
    let id = detach(&["-c", "SELECT 1 / (value - 5) FROM range(0, 9)"]).succeeds();
    let wait = format!("WAIT FOR JOB '{}'", id.trim_end());
    let failed = home.run(&["shell", "--connect", &uri, "-c", &wait]).fails();
    assert_eq!(failed, format!("error: job {}: Divide by zero error\n", id.trim_end()));
}

#[test]
fn without_a_server_the_shell_says_what_to_do() {
    let home = Home::new();
    let refused = home.run(&["shell", "--detach", "-c", "SELECT 1"]).fails();
    assert!(refused.contains("start one with `forebay serve`"), "{refused}");
    assert!(refused.contains("`forebay shell --connect grpc://HOST:PORT`"), "{refused}");
    assert_eq!(home.shell(&["-c", "SUBMIT SELECT 1"]).fails(), refused);
    // A scheduler is no server: its jobs end with their sessions.
    let scheduler = ["shell", "--connect", "127.0.0.1:1", "--detach", "-c", "SELECT 1"];
    assert_eq!(home.run(&scheduler).fails(), refused);
}
