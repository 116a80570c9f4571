//! The migrations are embedded by a macro, so cargo has to be told that they are an input.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
