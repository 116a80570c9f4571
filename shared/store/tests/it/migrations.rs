//! Both schemas in one database, from several processes at once, and again.

use laneway_store::{Options, Pool, migrate};
use laneway_testkit::{Stack, sql};

#[tokio::test(flavor = "multi_thread")]
async fn both_schemas_are_migrated_at_once_by_many_and_again() {
    let url = Stack::shared().await.fresh_database().await;
    let pool = Pool::connect(&url.as_str().into(), Options::new("test")).await.unwrap();
    assert!(!migrate::control_is_current(&pool).await.unwrap());
    assert!(!migrate::source_is_current(&pool).await.unwrap());
    let mut running = Vec::new();
    for _ in 0..3 {
        let pool = pool.clone();
        running.push(tokio::spawn(async move {
            migrate::control_migrate(&pool).await.unwrap();
            migrate::source_migrate(&pool).await.unwrap();
        }));
    }
    for one in running {
        one.await.unwrap();
    }
    migrate::control_migrate(&pool).await.unwrap();
    migrate::source_migrate(&pool).await.unwrap();
    assert!(migrate::control_is_current(&pool).await.unwrap());
    assert!(migrate::source_is_current(&pool).await.unwrap());
    let public = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public'";
    assert_eq!(sql(&url, public).await.unwrap()[0][0].as_deref(), Some("0"));
}

#[tokio::test]
async fn a_server_that_may_lose_commits_is_refused() {
    let url = Stack::shared().await.fresh_database().await;
    let name = url.rsplit('/').next().unwrap();
    sql(&url, &format!("ALTER DATABASE {name} SET synchronous_commit = off")).await.unwrap();
    let refused = Pool::connect(&url.as_str().into(), Options::new("test")).await.unwrap_err();
    assert_eq!(refused.to_string(), "database is not safe to use: synchronous_commit is off");
    assert!(!refused.is_transient());
}
