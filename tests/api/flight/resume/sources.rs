//! Several scans, files that are rows, and targets that are one file.

use std::fs;

use super::{
    CLUSTER, Client, EMBEDDED, FILES, ROWS, Stage, files, finishes, kept, kill, refused, rows, run,
    submit, until_complete,
};

/// The lines of a CSV file behind its header, in order.
fn lines_of(file: &std::path::Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let mut lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// How many rows a model has computed for the jobs that the cluster knows.
async fn computed(client: &mut Client) -> usize {
    let rows = "SELECT sum(rows) FROM forebay.stages WHERE name LIKE '%Inference(slow)%'";
    run(client, rows).await.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_file_is_there_at_once_and_its_rows_are_kept() {
    for (before, after) in [(EMBEDDED, CLUSTER), (CLUSTER, EMBEDDED)] {
        let stage = Stage::new();
        let file = stage.path("all.csv");
        fs::write(&file, "earlier\n").unwrap();
        let query = "SELECT n, digest FROM ml_predict(TABLE numbers, MODEL slow, DESCRIPTOR(n))";
        let copy = |file: &std::path::Path| format!("COPY ({query}) TO '{}'", file.display());
        let (mut server, mut client) = stage.serve(before).await;
        let id = submit(&mut client, &copy(&file)).await;
        let staging = stage.staging("");
        until_complete(&mut client, &staging, &id, FILES / 2).await;
        kill(&mut server);
        assert_eq!(fs::read_to_string(&file).unwrap(), "earlier\n");

        let (_server, mut client) = stage.serve(after).await;
        let (parts, _, kept_rows) = kept(&mut client, &id).await;
        assert!((FILES / 2..FILES).contains(&parts), "{parts}");
        let said = run(&mut client, &format!("EXPLAIN RESUME JOB '{id}'")).await;
        assert!(said.contains("the file, of all of these rows"), "{said}");
        run(&mut client, &format!("RESUME JOB '{id}'")).await;
        assert_eq!(finishes(&mut client, &id).await, ROWS);
        assert!(!staging.exists());
        if after == CLUSTER {
            assert_eq!(computed(&mut client).await, ROWS - kept_rows);
        }
        run(&mut client, "SET forebay.resumable = false").await;
        let other = stage.path("undisturbed.csv");
        run(&mut client, &copy(&other)).await;
        assert_eq!(lines_of(&file), lines_of(&other), "{before:?}");
        assert_eq!(lines_of(&file).len(), ROWS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_branch_of_a_union_is_cut_and_kept() {
    for (before, after) in [(EMBEDDED, CLUSTER), (CLUSTER, EMBEDDED)] {
        let stage = Stage::new();
        // The same files twice, and one that is joined with others.
        let model = |rows: &str| format!("ml_predict({rows}, MODEL slow, DESCRIPTOR(n))");
        let query = format!(
            "SELECT n, digest, 'a' AS b FROM {} UNION ALL SELECT n, digest, 'b' FROM {} \
             UNION ALL SELECT p.n, p.digest, names.name FROM {} p JOIN names ON p.n = names.k",
            model("(SELECT n FROM numbers WHERE n % 3 = 0)"),
            model("(SELECT n FROM numbers WHERE n % 3 = 1)"),
            model("(SELECT n FROM numbers WHERE n < 5)"),
        );
        let copy = |to: &str| {
            format!("COPY ({query}) TO '{}/' STORED AS PARQUET", stage.path(to).display())
        };
        let (mut server, mut client) = stage.serve(before).await;
        let id = submit(&mut client, &copy("out")).await;
        let staging = stage.staging("");
        // The last of them are of the second branch.
        until_complete(&mut client, &staging, &id, FILES + FILES / 2).await;
        kill(&mut server);
        let (_server, mut client) = stage.serve(after).await;
        let (parts, _, kept_rows) = kept(&mut client, &id).await;
        assert!((FILES + FILES / 2..3 * FILES).contains(&parts), "{parts}");
        run(&mut client, &format!("RESUME JOB '{id}'")).await;
        let all = 2 * ROWS / 3 + 5;
        assert_eq!(finishes(&mut client, &id).await, all);
        if after == CLUSTER {
            assert_eq!(computed(&mut client).await, all - kept_rows);
        }
        run(&mut client, "SET forebay.resumable = false").await;
        run(&mut client, &copy("undisturbed")).await;
        assert_eq!(rows(&stage.path("out")), rows(&stage.path("undisturbed")), "{before:?}");
        assert_eq!(rows(&stage.path("out")).len(), all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_rows_are_kept_even_if_they_are_empty() {
    const PHOTOS: usize = 40;
    let stage = Stage::new();
    let folder = stage.path("photos");
    fs::create_dir(&folder).unwrap();
    for size in 0..PHOTOS {
        fs::write(folder.join(format!("{size:02}.jpg")), vec![b'x'; size]).unwrap();
    }
    let photos = format!("read_files('{}/*.jpg')", folder.display());
    let query = format!(
        "SELECT n, digest, octet_length(bytes) AS b FROM ml_predict((SELECT size AS n, bytes FROM {photos}), \
         MODEL slow, DESCRIPTOR(n))"
    );
    let copy =
        |to: &str| format!("COPY ({query}) TO '{}/' STORED AS PARQUET", stage.path(to).display());
    let (mut server, mut client) = stage.serve(EMBEDDED).await;
    let id = submit(&mut client, &copy("out")).await;
    let staging = stage.staging("");
    until_complete(&mut client, &staging, &id, 8).await;
    kill(&mut server);
    let (_server, mut client) = stage.serve(EMBEDDED).await;
    let (parts, kept_files, kept_rows) = kept(&mut client, &id).await;
    assert!((8..PHOTOS).contains(&parts), "{parts}");
    assert_eq!((kept_files, kept_rows), (parts, parts));
    let resume = format!("RESUME JOB '{id}'");
    // The first one is done.
    fs::write(folder.join("01.jpg"), "y").unwrap();
    fs::write(folder.join("99.jpg"), "").unwrap();
    let changed = refused(&mut client, &resume).await;
    for said in ["01.jpg' has changed", "99.jpg' is new", "ANEW"] {
        assert!(changed.message().contains(said), "{said}: {changed}");
    }
    let (still, ..) = kept(&mut client, &id).await;
    assert_eq!(still, parts - 1);
    run(&mut client, &format!("{resume} ANEW")).await;
    assert_eq!(finishes(&mut client, &id).await, PHOTOS + 1);
    run(&mut client, "SET forebay.resumable = false").await;
    run(&mut client, &copy("undisturbed")).await;
    assert_eq!(rows(&stage.path("out")), rows(&stage.path("undisturbed")));
    assert!(files(&stage.path("out")).len() > parts);

    // As what all parts join with.
    let query =
        format!("SELECT numbers.n, p.size FROM numbers JOIN {photos} p ON p.size = numbers.n");
    let to = format!("TO '{}/' STORED AS PARQUET", stage.path("joined").display());
    let id = submit(&mut client, &format!("COPY ({query}) {to}")).await;
    // Two have no bytes by now.
    assert_eq!(finishes(&mut client, &id).await, PHOTOS + 1);
    assert_eq!(rows(&stage.path("joined")).len(), PHOTOS + 1);
}
