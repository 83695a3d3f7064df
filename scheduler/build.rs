//! The code of our gRPC service, from its description here: no `protoc` needed.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::protocol::messages::{input}"))
            .output_type(format!("crate::protocol::messages::{output}"))
            .codec_path("tonic_prost::ProstCodec")
    };
    let cluster = Service::builder()
        .package("forebay")
        .name("Cluster")
        .comment("What Forebay adds to Ballista's services.")
        .method(
            method("describe", "Describe", "DescribeRequest", "ClusterDescription")
                .comment("What the cluster has.")
                .build(),
        )
        .method(
            method("run", "Run", "RunRequest", "RunUpdate")
                .comment("Runs a plan for as long as the answer is read.")
                .server_streaming()
                .build(),
        )
        .method(
            method("read", "Read", "ReadRequest", "ReadAnswer")
                .comment("What the client of a job reads next.")
                .build(),
        )
        .method(
            method("table", "Table", "TableRequest", "TableRows")
                .comment("The rows of a system table.")
                .build(),
        )
        .method(
            method("analyze", "Analyze", "AnalyzeRequest", "Analysis")
                .comment("What was measured of a job.")
                .build(),
        )
        .method(
            method("attend", "Attend", "FromWorker", "ToWorker")
                .comment("A worker's line to the scheduler: open as long as it lives.")
                .client_streaming()
                .server_streaming()
                .build(),
        )
        .build();
    let blocks = Service::builder()
        .package("forebay")
        .name("Blocks")
        .comment("What a worker serves to others.")
        .method(
            Method::builder()
                .name("fetch")
                .route_name("Fetch")
                .input_type("crate::protocol::messages::FetchRequest")
                .output_type("crate::protocol::messages::Chunk")
                .codec_path("tonic_prost::ProstCodec")
                .comment("The file of a block.")
                .server_streaming()
                .build(),
        )
        .build();
    Builder::new().compile(&[cluster, blocks]);
}
