//! The code of our gRPC services, from their description here: no `protoc` needed.

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

fn main() {
    Builder::new().compile(&[cluster(), blocks()]);
}

fn cluster() -> Service {
    let describe = method("describe", "Describe", "DescribeRequest", "ClusterDescription")
        .comment("What the cluster has.");
    let run = method("run", "Run", "RunRequest", "RunUpdate")
        .comment("Runs a plan for as long as the answer is read.")
        .server_streaming();
    let read = method("read", "Read", "ReadRequest", "ReadAnswer")
        .comment("What the client of a job reads next.");
    let dealt = method("dealt", "Dealt", "DealtRequest", "DealtAnswer")
        .comment("What a task that began early reads next.");
    let table = method("table", "Table", "TableRequest", "TableRows")
        .comment("The rows of a system table.");
    let analyze = method("analyze", "Analyze", "AnalyzeRequest", "Analysis")
        .comment("What was measured of a job.");
    let attend = method("attend", "Attend", "FromWorker", "ToWorker")
        .comment("A worker's line to the scheduler: open as long as it lives.")
        .client_streaming()
        .server_streaming();
    let service = Service::builder()
        .package("forebay")
        .name("Cluster")
        .comment("What Forebay adds to Ballista's services.");
    let methods = [describe, run, read, dealt, table, analyze, attend].into_iter();
    methods.fold(service, |service, method| service.method(method.build())).build()
}

fn blocks() -> Service {
    let fetch = method("fetch", "Fetch", "FetchRequest", "Chunk")
        .comment("The file of a block.")
        .server_streaming();
    let find = method("find", "Find", "FetchRequest", "BlockFiles")
        .comment("Where the files of blocks are, for readers of the same machine.");
    Service::builder()
        .package("forebay")
        .name("Blocks")
        .comment("What a worker serves to others.")
        .method(fetch.build())
        .method(find.build())
        .build()
}

fn method(name: &str, route: &str, input: &str, output: &str) -> MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::protocol::messages::{input}"))
        .output_type(format!("crate::protocol::messages::{output}"))
        .codec_path("tonic_prost::ProstCodec")
}
