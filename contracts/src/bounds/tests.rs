//! Messages outside their bounds are refused before they are decoded.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use prost::Message;

use super::*;
use crate::proto::control::{
    EdgeCommandRequest, EdgeHeartbeat, EdgeHelloRequest, EdgeSummary, Operation, Problem,
};
use crate::proto::node::{
    ArtifactAcquire, ArtifactFile, Evidence, Gpu, JobFail, JobFailure, JobLease, JobProgress, JobReady,
    NodeHelloRequest, NodeInventory, NodeLeases, RunningJob, job_lease,
};

#[test]
fn a_message_within_its_bounds_is_decoded_as_it_is() {
    let hello = EdgeHelloRequest {
        edge_id: "ber1".to_owned(),
        operations: vec![Operation { name: "node.drain".to_owned(), class: 2 }],
        ..Default::default()
    };
    assert_eq!(decode::<EdgeHelloRequest>(&hello.encode_to_vec()).unwrap(), hello);
    let leases = NodeLeases { lease_ids: (0..2048).collect() };
    assert_eq!(decode::<NodeLeases>(&leases.encode_to_vec()).unwrap(), leases);
}

#[test]
fn each_bound_names_its_field() {
    let refused = |bytes: Vec<u8>, words: &str| {
        let error = decode::<EdgeHelloRequest>(&bytes).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains(words), "{error}");
    };
    let many = EdgeHelloRequest { operations: vec![Operation::default(); 513], ..Default::default() };
    refused(many.encode_to_vec(), "operations occurs more than 512 times");
    let long = EdgeHelloRequest { edge_id: "x".repeat(65), ..Default::default() };
    refused(long.encode_to_vec(), "edge_id is longer than 64 bytes");
    refused(vec![0; IN_FRAME + 1], "more than 61440 bytes");
    refused(vec![0x0a], "malformed");
    let leases = NodeLeases { lease_ids: vec![1; 2049] }.encode_to_vec();
    assert!(decode::<NodeLeases>(&leases).is_err());
}

#[test]
fn a_list_cannot_hide_in_a_message_that_occurs_twice_or_deep_inside() {
    let one = NodeHelloRequest {
        inventory: Some(NodeInventory { gpus: vec![Gpu::default(); 64], ..Default::default() }),
        ..Default::default()
    };
    assert!(decode::<NodeHelloRequest>(&one.encode_to_vec()).is_ok());
    let twice = [one.encode_to_vec(), one.encode_to_vec()].concat();
    assert!(decode::<NodeHelloRequest>(&twice).unwrap_err().message.contains("inventory occurs"));
    let summary = EdgeSummary { problems: vec![Problem::default(); 33], ..Default::default() };
    let heartbeat = EdgeHeartbeat { summary: Some(summary), ..Default::default() };
    assert!(
        decode::<EdgeHeartbeat>(&heartbeat.encode_to_vec()).unwrap_err().message.contains("problems occurs")
    );
}

#[test]
fn metadata_is_bounded() {
    let metadata = (0..5).map(|key| (key.to_string(), String::new())).collect();
    let command = EdgeCommandRequest { metadata, ..Default::default() };
    assert!(decode::<EdgeCommandRequest>(&command.encode_to_vec()).unwrap_err().message.contains("metadata"));
}

#[test]
fn what_a_job_says_is_bounded() {
    let progress = |message: usize| JobProgress { message: "x".repeat(message), ..Default::default() };
    assert!(decode::<JobProgress>(&progress(3 * 1024).encode_to_vec()).is_ok());
    assert!(decode::<JobProgress>(&progress(4 * 1024).encode_to_vec()).is_err());
    let fail = |tail: usize| {
        let failure = JobFailure { output_tail: "x".repeat(tail), ..Default::default() };
        JobFail { failure: Some(failure), ..Default::default() }.encode_to_vec()
    };
    assert!(decode::<JobFail>(&fail(32 * 1024)).is_ok());
    assert!(decode::<JobFail>(&fail(32 * 1024 + 1)).unwrap_err().message.contains("output_tail is longer"));
    let failure = JobFailure { layers: vec![Evidence::default(); 9], ..Default::default() };
    let deep = JobFail { failure: Some(failure), ..Default::default() }.encode_to_vec();
    assert!(decode::<JobFail>(&deep).unwrap_err().message.contains("layers occurs"));
    let ready = JobReady { slots: 1, running: vec![RunningJob::default(); 65] };
    assert!(decode::<JobReady>(&ready.encode_to_vec()).unwrap_err().message.contains("running occurs"));
}

#[test]
fn a_job_of_many_files_fits_into_one_frame_and_one_of_more_is_refused() {
    let lease = |files: u64| {
        let file = |index: u64| ArtifactFile {
            path: format!("model-{index:05}-of-{files:05}.safetensors"),
            bytes: 4_000_000_000 + index,
            sha256: vec![7; 32],
        };
        let acquire = ArtifactAcquire { files: (0..files).map(file).collect(), ..Default::default() };
        let body = Some(job_lease::Body::ArtifactAcquire(acquire));
        JobLease { body, ..Default::default() }.encode_to_vec()
    };
    assert!(decode::<JobLease>(&lease(512)).is_ok());
    assert!(decode::<JobLease>(&lease(513)).unwrap_err().message.contains("files occurs more than 512"));
}

quickcheck::quickcheck! {
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) -> bool {
        let _ = decode::<NodeHelloRequest>(&bytes);
        let _ = decode::<EdgeHelloRequest>(&bytes);
        true
    }
}
