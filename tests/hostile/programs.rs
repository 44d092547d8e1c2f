//! Case 6: programs that the executor or the grader would run, overwritten. What a grader then
//! gives is in `rewards`.

use executor::sandbox::Exit;

use crate::images::small_root;
use crate::lab::{Done, Lab, said, shell_as, start_as};

crate::cases![
    "06" programs_of_the_host_cannot_be_replaced,
    "06" programs_of_an_image_are_replaced_in_a_private_copy_only,
];

const REPLACE: &str =
    "for p in /bin/bash /bin/sh /usr/bin/env /usr/bin/grep /usr/lib/x86_64-linux-gnu/libc.so.6; do
  echo evil > $p; rm -f $p; mv $p /tmp/x; ln -sf /bin/true $p; cp /bin/true $p; chmod 777 $p
done 2>/dev/null; echo tried";

fn programs() -> Vec<Vec<u8>> {
    ["/bin/bash", "/bin/sh", "/usr/bin/env", "/usr/bin/grep"].map(|path| std::fs::read(path).unwrap()).into()
}

async fn programs_of_the_host_cannot_be_replaced(lab: &Lab) -> Done {
    let before = programs();
    let sandbox = lab.sandbox().await;
    for user in ["rollout", "root"] {
        assert_eq!(shell_as(&sandbox, user, REPLACE).await.stdout, "tried\n");
        for program in ["/usr/bin/bash", "/usr/bin/env"] {
            let mut argv = vec![program];
            argv.extend(if program.ends_with("env") { vec!["echo", "ok"] } else { vec!["-c", "echo ok"] });
            assert_eq!(start_as(&sandbox, user, "/", &argv).await.unwrap().output().await.stdout, "ok\n");
        }
    }
    assert!(programs() == before, "the host's own programs");
    // What root of the sandbox owns it may bend, for itself: links of the root, a preloaded library.
    let bent = "rm /bin && mkdir /bin && cp /usr/bin/true /bin/sh && echo /tmp/absent.so > /etc/ld.so.preload; echo bent";
    assert_eq!(shell_as(&sandbox, "root", bent).await.stdout, "bent\n");
    let silent =
        start_as(&sandbox, "rollout", "/", &["/bin/sh", "-c", "echo ok"]).await.unwrap().output().await;
    assert_eq!((silent.exit, silent.stdout.as_str()), (Exit::Code(0), ""), "its own view only");
    // Init is not a program of any root: it goes on, and the next sandbox is as the first was.
    sandbox.kill_all().await.unwrap();
    let own =
        start_as(&sandbox, "rollout", "/", &["/usr/bin/dash", "-c", "echo ok"]).await.unwrap().output().await;
    assert_eq!(own.stdout, "ok\n");
    let fresh = lab.sandbox().await;
    assert_eq!(
        said(&fresh, "cat /etc/ld.so.preload 2>/dev/null; readlink /bin; echo ok").await,
        "usr/bin\nok"
    );
    fresh.end().await;
    sandbox.end().await;
    Ok(())
}

async fn programs_of_an_image_are_replaced_in_a_private_copy_only(lab: &Lab) -> Done {
    let root = small_root(&lab.dir, "image");
    let before = std::fs::read(root.join("bin/sh")).unwrap();
    let image = format!("dir:{}", root.display());
    let agent = lab.sandbox_with(|spec| spec.image.clone_from(&image)).await;
    // Not its owner: nothing.
    let tried =
        shell_as(&agent, "rollout", "cp /bin/ls /bin/sh; rm /bin/cat; cat /bin/sh > /dev/null && echo whole")
            .await;
    assert_eq!(tried.stdout, "whole\n");
    let replaced =
        shell_as(&agent, "0", "cp /bin/ls /bin/new && rm /bin/sh && cp /bin/new /bin/sh && echo done").await;
    assert_eq!(replaced.stdout, "done\n");
    assert!(
        start_as(&agent, "rollout", "/", &["/bin/sh", "/etc"])
            .await
            .unwrap()
            .output()
            .await
            .stderr
            .is_empty()
    );
    // The grader's sandbox of the same image, made while the agent's lives.
    let grader = lab.sandbox_with(|spec| spec.image.clone_from(&image)).await;
    assert_eq!(said(&grader, "ls /bin/new 2>/dev/null; echo ok").await, "ok");
    grader.end().await;
    agent.end().await;
    assert!(std::fs::read(root.join("bin/sh")).unwrap() == before && !root.join("bin/new").exists());
    Ok(())
}
