//! What is one user's, and what is everybody's.

use tonic::Code;

use super::process::{ROWS, Server, lines, text, user};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_see_their_own_jobs_and_leave_what_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users.toml");
    let tokens = ["read", "write", "admin"].map(|role| {
        let token = user(&["token", &format!("the-{role}"), "--role", role], &users, "");
        format!("Bearer {token}")
    });
    let root = folder.path().join("data");
    std::fs::create_dir(&root).unwrap();
    let arguments = ["--worker", "--bind", "127.0.0.1:0", "--users", text(&users), "--root"];
    let server = Server::start(folder.path(), &[&arguments[..], &[text(&root)]].concat());
    let [mut reader, mut writer, mut admin] = [
        server.client(&tokens[0]).await,
        server.client(&tokens[1]).await,
        server.client(&tokens[2]).await,
    ];
    reader.run("SELECT count(*) AS of_reader FROM t").await.unwrap();
    let copy = format!(
        "COPY (SELECT n AS of_writer FROM t) TO '{}/t.parquet' OPTIONS ('format.compression' 'snappy')",
        root.display()
    );
    writer.run(&copy).await.unwrap();
    let names = "SELECT owner, name FROM forebay.jobs ORDER BY queued";
    let of_reader = lines(&reader.run(names).await.unwrap());
    assert_eq!(of_reader, "the-read,SELECT count(*) AS of_reader FROM t\n");
    let of_writer = lines(&writer.run(names).await.unwrap());
    assert!(of_writer.contains("of_writer") && !of_writer.contains("of_reader"), "{of_writer}");
    assert!(!of_writer.contains("snappy"), "options may be keys: {of_writer}");
    let all = lines(&admin.run(names).await.unwrap());
    assert_eq!(all, of_reader.clone() + &of_writer);
    for table in ["stages", "tasks", "blocks", "recomputed"] {
        let jobs = format!(
            "SELECT count(*) FROM forebay.{table} WHERE job_id NOT IN (SELECT job_id FROM forebay.jobs)"
        );
        assert_eq!(lines(&reader.run(&jobs).await.unwrap()), "0\n", "{table}");
    }
    let tasks = "SELECT count(DISTINCT job_id) FROM forebay.tasks";
    assert_eq!(lines(&reader.run(tasks).await.unwrap()), "1\n");
    assert_eq!(lines(&admin.run(tasks).await.unwrap()), "2\n");
    writer.run("CREATE SCHEMA mine").await.unwrap();
    for statement in [
        "DROP SCHEMA public CASCADE",
        "DROP SCHEMA mine",
        "DROP SCHEMA IF EXISTS forebay CASCADE",
        "PREPARE p AS DROP SCHEMA public CASCADE",
        "CREATE DATABASE other",
    ] {
        let refused = writer.run(statement).await.expect_err(statement);
        assert_eq!(refused.code(), Code::PermissionDenied, "{statement}: {refused}");
        assert!(refused.message().contains("needs the role admin"), "{refused}");
    }
    assert_eq!(lines(&reader.run("SELECT count(*) FROM t").await.unwrap()), format!("{ROWS}\n"));
    admin.run("DROP SCHEMA mine").await.unwrap();
}
