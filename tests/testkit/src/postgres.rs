//! Just enough of PostgreSQL's protocol to run a statement: only the store crate may use a real client.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// A statement of a test's set-up takes less.
const LIMIT: Duration = Duration::from_secs(60);
const PROTOCOL_3_0: i32 = 196_608;

/// Runs one or more statements (simple query protocol) and gives the rows of all as text, `None` for NULL.
///
/// `url` is `postgres://user@host:port/database`; the server must trust it (the local stack does).
///
/// # Errors
/// Anything that PostgreSQL reports, with its message; a lost connection.
pub async fn sql(url: &str, statement: &str) -> Result<Vec<Vec<Option<String>>>> {
    let (url, statement) = (url.to_owned(), statement.to_owned());
    tokio::task::spawn_blocking(move || {
        sql_blocking(&url, &statement).with_context(|| format!("on {url}: {statement}"))
    })
    .await?
}

/// As [`sql`], on the calling thread.
fn sql_blocking(url: &str, statement: &str) -> Result<Vec<Vec<Option<String>>>> {
    let rest = url.strip_prefix("postgres://").context("the URL must begin with postgres://")?;
    let (user, rest) = rest.split_once('@').context("the URL names no user")?;
    let (address, database) = rest.split_once('/').context("the URL names no database")?;
    let database = database.split('?').next().unwrap_or_default();
    let user = user.split(':').next().unwrap_or_default();

    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);

    let mut startup = PROTOCOL_3_0.to_be_bytes().to_vec();
    for part in ["user", user, "database", database, ""] {
        startup.extend_from_slice(part.as_bytes());
        startup.push(0);
    }
    writer.write_all(&(startup.len() as i32 + 4).to_be_bytes())?;
    writer.write_all(&startup)?;
    read_until_ready(&mut reader)?;

    let mut query = vec![b'Q'];
    query.extend_from_slice(&(statement.len() as i32 + 5).to_be_bytes());
    query.extend_from_slice(statement.as_bytes());
    query.push(0);
    writer.write_all(&query)?;
    let rows = read_until_ready(&mut reader)?;
    writer.write_all(&[b'X', 0, 0, 0, 4])?;
    Ok(rows)
}

/// Reads messages up to `ReadyForQuery`; an error of the server is returned after it.
fn read_until_ready(reader: &mut impl Read) -> Result<Vec<Vec<Option<String>>>> {
    let mut rows = Vec::new();
    let mut failure = None;
    loop {
        let mut head = [0; 5];
        if let Err(error) = reader.read_exact(&mut head) {
            // A fatal error is not followed by `ReadyForQuery`.
            bail!(failure.unwrap_or_else(|| format!("connection lost: {error}")));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length.checked_sub(4).context("a message is too short")?];
        reader.read_exact(&mut body)?;
        match head[0] {
            b'R' => ensure!(body.starts_with(&[0; 4]), "the server wants a password"),
            b'E' => failure = Some(error_message(&body)),
            b'D' => rows.push(row(&body)?),
            b'Z' => match failure {
                Some(message) => bail!(message),
                None => return Ok(rows),
            },
            _ => {}
        }
    }
}

fn error_message(body: &[u8]) -> String {
    let field = |code: u8| {
        body.split(|byte| *byte == 0)
            .find(|field| field.first() == Some(&code))
            .map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
            .unwrap_or_default()
    };
    format!("{} ({})", field(b'M'), field(b'C'))
}

fn row(body: &[u8]) -> Result<Vec<Option<String>>> {
    let mut rest = body.get(2..).context("a row is too short")?;
    let mut columns = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) => {
                let (text, after) = after.split_at_checked(length).context("a row is cut")?;
                columns.push(Some(String::from_utf8_lossy(text).into_owned()));
                rest = after;
            }
            Err(_) => {
                columns.push(None);
                rest = after;
            }
        }
    }
    Ok(columns)
}
