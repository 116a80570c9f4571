//! What describes the API itself: its OpenAPI document and the pages of its problems.

use crate::problem::{self, KINDS, Problem};
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::fmt::Write as _;

pub(crate) async fn problem_page(slug: Option<Path<String>>) -> Result<Response, Problem> {
    let not_found = || problem::NOT_FOUND.problem();
    let Path(slug) = slug.ok_or_else(not_found)?;
    let kind = KINDS.iter().find(|kind| kind.slug() == slug).ok_or_else(not_found)?;
    let page = format!(
        "{}\n\ncode: {}\nstatus: {}\n\n{}\n",
        kind.title, kind.code, kind.status, kind.help
    );
    Ok(plain(page))
}

pub(crate) async fn problem_index() -> Response {
    let mut page = String::new();
    for kind in KINDS {
        let _ = writeln!(page, "{} {} /problems/{}", kind.status, kind.code, kind.slug());
    }
    plain(page)
}

pub(crate) async fn not_found() -> Problem {
    problem::NOT_FOUND.problem()
}

pub(crate) async fn method_not_allowed() -> Problem {
    problem::METHOD_NOT_ALLOWED.problem()
}

fn plain(page: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
}
