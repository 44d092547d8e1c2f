//! Compiles the protocol with `protox`: no `protoc` on the machine is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../proto";
    let files = ["nodes", "jobs", "sandboxes"].map(|name| format!("rollyard/v1/{name}.proto"));
    println!("cargo:rerun-if-changed={root}");
    let descriptors = protox::compile(&files, [root])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
