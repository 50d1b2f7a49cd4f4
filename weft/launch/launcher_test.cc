// The launcher runs in its own process (a fork of this one), so that tests can send signals and
// read its output.
#include "weft/launch/testing/launch_harness.h"

#include <sys/file.h>
#include <sys/stat.h>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/launch/internal/line_relay.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/live_page.h"

namespace weft::launch {
namespace {

TEST(LaunchSlow, GivesTheRanksTorchrunsEnvironment) {
  std::vector<std::string> things;
  for (const auto& [name, value] : kTorchrun) things.push_back("1=env:" + name);
  for (const char* name :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}) {
    things.push_back(std::string("1=env:") + name);
  }
  auto options = child(2, things);
  options.prefix = false;
  const auto result = run(options);
  EXPECT_EQ(result.code, 0) << result.err;
  for (const auto& [name, value] : kTorchrun)
    EXPECT_THAT(result.out, HasSubstr(name + "=" + value + "\n"));
  EXPECT_THAT(result.out, HasSubstr("MASTER_ADDR=127.0.0.1\n"));
  EXPECT_TRUE(std::regex_search(result.out, std::regex("MASTER_PORT=[1-9][0-9]+\n"))) << result.out;
  EXPECT_THAT(result.out, HasSubstr("TORCHELASTIC_RUN_ID=none\n"));
  EXPECT_TRUE(std::regex_search(result.out,
                                std::regex("TORCHELASTIC_ERROR_FILE=/.*/attempt_0/1/error.json\n")))
      << result.out;
}

TEST(LaunchSlow, HostsTheStoreForAllRanks) {
  auto options = child(3, {"store"});
  const auto result = run(options);
  EXPECT_EQ(result.code, 0) << result.err;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(result.out, HasSubstr("sum " + std::to_string(rank + 1) + "\n"));
    for (int other = 0; other < 3; ++other) {
      EXPECT_THAT(result.out, HasSubstr("[rank " + std::to_string(rank) + "] rank" +
                                        std::to_string(other) + " hi\n"));
    }
  }
}

TEST(LaunchSlow, GivesEveryRankTheSameSecretAndTheNextJobAnother) {
  auto options = child(2, {"secret"});
  options.prefix = false;
  const auto first = lines(run(options).out), second = lines(run(options).out);
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_THAT(first[0], HasSubstr("secret 32 "));
  EXPECT_EQ(first[0], first[1]);
  EXPECT_NE(first[0], second[0]);
}

TEST(LaunchSlow, PrintsTheFirstFailedRankLastAndExitsWithItsCode) {
  Folder folder;
  const auto flag = (folder.path / "flag").string();
  // Rank 0 fails only after rank 1, so its failure is a consequence.
  const auto result = run(child(2, {"0=await:" + flag, "0=exit:201", "1=err:cannot open data",
                                    "1=cause:no data", "1=touch:" + flag, "1=exit:3"}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err,
              EndsWith("[rank 1] cannot open data\n"
                       "weft: rank 0 ended as a consequence: exit code 201 (weft: PeerLost)\n"
                       "weft: rank 1 failed first: exit code 3: no data\n"));
}

TEST(LaunchSlow, ReportsAKilledRankByItsSignal) {
  const auto result = run(child(2, {"0=pause", "1=signal:9"}));
  EXPECT_EQ(result.code, 137);
  EXPECT_THAT(result.err, HasSubstr("weft: rank 0 ended as a consequence: SIGTERM (signal 15)\n"));
  EXPECT_THAT(lines(result.err).back(), HasSubstr("weft: rank 1 failed first: SIGKILL (signal 9)"));
}

TEST(LaunchSlow, KillsARankThatIgnoresSigterm) {
  Folder folder;
  const auto flag = (folder.path / "flag").string();
  auto options =
      child(2, {"0=ignore-term", "0=touch:" + flag, "0=pause", "1=await:" + flag, "1=exit:5"});
  options.shutdown_timeout = milliseconds(100);
  const auto result = run(options);
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err,
              HasSubstr("weft: rank 0 ended as a consequence: SIGKILL (signal 9): killed by weft"));
}

TEST(LaunchSlow, RestartsTheWholeGroupWithAFreshStoreAndCountsPerJob) {
  auto options = child(2, {"env:TORCHELASTIC_RESTART_COUNT", "store", "@0=1=exit:1", "@1=0=exit:1",
                           "@1=1=pause", "@0=0=pause"});
  options.max_restarts = 2;
  const auto result = run(options);
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* restart : {"0", "1", "2"}) {
    for (const char* rank : {"0", "1"}) {
      EXPECT_THAT(result.out, HasSubstr(std::string("[rank ") + rank +
                                        "] TORCHELASTIC_RESTART_COUNT=" + restart));
    }
  }
  // A store that survived the restart would have continued counting.
  EXPECT_THAT(result.out, Not(HasSubstr("sum 3")));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
}

TEST(LaunchSlow, GivesUpAfterTheLastRestart) {
  auto options = child(1, {"out:here", "exit:4"});
  options.max_restarts = 2;
  const auto result = run(options);
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(lines(result.out).size(), 3u);
}

TEST(LaunchSlow, WritesLogsInTheLayoutOfTorchrun) {
  auto options = child(2, {"out:to stdout", "err:to stderr"});
  Folder folder;
  options.log_dir = folder.path.string();
  options.run_id = "job";
  options.redirects = "1:3";
  options.tee = "0:2";
  const auto result = run(options);
  EXPECT_EQ(result.code, 0) << result.err;
  const auto made = std::filesystem::directory_iterator(folder.path)->path();
  EXPECT_THAT(made.filename().string(), testing::StartsWith("job_"));
  EXPECT_EQ(read_file(made / "attempt_0/1/stdout.log"), "to stdout\n");
  EXPECT_EQ(read_file(made / "attempt_0/1/stderr.log"), "to stderr\n");
  EXPECT_EQ(read_file(made / "attempt_0/0/stderr.log"), "to stderr\n");
  EXPECT_FALSE(std::filesystem::exists(made / "attempt_0/0/stdout.log"));
  EXPECT_EQ(result.out, "[rank 0] to stdout\n");
  EXPECT_THAT(result.err, HasSubstr("[rank 0] to stderr\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("[rank 1]")));
}

// The id of a job on a cluster may be a path, or longer than a folder's name may be.
TEST(Launch, AcceptsAnyIdOfAJob) {
  for (const std::string& id : {std::string("team/job 7"), std::string(300, 'j')}) {
    Folder folder;
    auto options = child(1, {"env:TORCHELASTIC_RUN_ID"});
    options.log_dir = folder.path.string();
    options.run_id = id;
    const auto result = run(options);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "TORCHELASTIC_RUN_ID=" + id + "\n");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path), {}), 1);
  }
}

TEST(Launch, SaysWhyASecretCannotBeRead) {
  const Folder folder;
  const std::string none = folder.path / "none", pipe = folder.path / "pipe",
                    empty = folder.path / "empty";
  std::ofstream(empty) << "";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [file, why] : {std::pair{none, "No such file"},
                                  {folder.path.string(), "Is a directory"},
                                  {pipe, "expected at least 32 bytes"},
                                  {empty, "expected at least 32 bytes"}}) {
    auto options = child(1, {});
    options.secret_file = file;
    expect_refused([&] { launch(options); }, Errc::kBadConfig,
                   "--secret-file " + file + ": " + why);
  }
}

TEST(LineRelay, SaysThatALogCannotBeWrittenAndGoesOn) {
  Running relaying([](const std::string&) {
    auto [out, in] = internal::make_pipe("a test");
    internal::Console shown(STDOUT_FILENO), errors(STDERR_FILENO);
    internal::LineRelay::Options options;
    options.console = &shown;
    options.errors = &errors;
    options.prefix = "[rank 3] ";
    options.log = Fd(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    internal::LineRelay relay(std::move(out), std::move(options));
    for (const char* line : {"first\n", "second\n"}) {
      write_all(in.get(), line, "a pipe");
      relay.pump();
    }
    return 0;
  });
  const auto result = relaying.end();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[rank 3] first\n[rank 3] second\n");
  EXPECT_EQ(result.err,
            "weft: [rank 3] the log of this rank ends here, since it cannot be written: No space "
            "left on device\n");
}

// A terminal that was stopped with Ctrl-S, or a pager on its first page.
TEST(LaunchSlow, EndsOnASignalAlthoughNobodyReadsItsOutput) {
  auto [reader, writer] = internal::make_pipe("a test");
  ::fcntl(writer.get(), F_SETFL, O_NONBLOCK);
  while (::write(writer.get(), "x", 1) == 1) {
  }
  ::fcntl(writer.get(), F_SETFL, 0);
  Folder folder;
  const Fd errors(::open((folder.path / "err").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ProcessOptions options;
  options.stdout_fd = writer.get();
  options.stderr_fd = errors.get();
  options.call = [&] {
    return launch(child(2, {"0=out:text", "0=touch:" + (folder.path / "r0").string(), "pause"}));
  };
  Process launcher(options);
  const auto deadline = Deadline::in(std::chrono::seconds(60));
  while (!std::filesystem::exists(folder.path / "r0") && !deadline.passed()) ::usleep(500);
  launcher.signal(SIGTERM);
  const auto status = launcher.wait(Deadline::in(std::chrono::seconds(20)));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->describe(), "exit code 143");
  EXPECT_THAT(read_file(folder.path / "err"),
              HasSubstr("weft: 14 bytes of output were dropped: nobody read them\n"));
}

// As in weft run … 2>&1 | tee log, when tee ends.
TEST(LaunchSlow, RunsOnAfterTheReaderOfItsOutputHasEnded) {
  auto [reader, writer] = internal::make_pipe("a test");
  reader.reset();
  Folder folder;
  ProcessOptions options;
  options.stdout_fd = options.stderr_fd = writer.get();
  options.environment = {"TMPDIR=" + folder.path.string()};
  options.call = [] {
    ::signal(SIGPIPE, SIG_DFL);
    return launch(child(2, {"out:text", "err:text"}));
  };
  const auto status = Process(options).wait(Deadline::in(std::chrono::seconds(60)));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->describe(), "exit code 0");
}

TEST(LaunchSlow, NamesTheLogOfTheRankThatFailed) {
  auto options = child(1, {"err:why", "exit:1"});
  Folder folder;
  options.log_dir = folder.path.string();
  options.redirects = "3";
  const auto result = run(options);
  EXPECT_THAT(result.err, HasSubstr("    why\nweft: rank 0 failed first: exit code 1 (log: " +
                                    folder.path.string()));
}

TEST(LaunchSlow, FindsTheCauseOfARankThatHasChangedItsFolderWithARelativeLogFolder) {
  Running launcher([](const std::string& folder) {
    std::filesystem::current_path(folder);
    auto options = child(1, {"cd:/", "cause:no data", "exit:1"});
    options.log_dir = "logs";
    options.redirects = "3";
    return launch(options);
  });
  EXPECT_THAT(launcher.end().err, HasSubstr("no data"));
}

// systemd-tmpfiles takes this lock before it removes what is old.
TEST(LaunchSlow, KeepsItsTemporaryFolderLocked) {
  Running launcher([](const std::string& folder) {
    return launch(child(1, {"touch:" + folder + "r0", "pause"}));
  });
  launcher.await({"r0"});
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(launcher.temporary())) {
    const Fd cleaner(::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_NE(::flock(cleaner.get(), LOCK_EX | LOCK_NB), 0) << entry.path();
    ++folders;
  }
  EXPECT_EQ(folders, 1);
  ::kill(launcher.pid(), SIGTERM);
  launcher.end();
}

TEST(LaunchSlow, ShowsOnlyTheRanksOfTheFilter) {
  auto options = child(3, {"out:here"});
  options.local_ranks_filter = "0,2";
  auto out = lines(run(options).out);
  std::sort(out.begin(), out.end());
  EXPECT_THAT(out, testing::ElementsAre("[rank 0] here", "[rank 2] here"));
}

TEST(LaunchSlow, ForwardsCtrlCAndReportsIt) {
  Running launcher([](const std::string& folder) {
    return launch(child(2, {"0=touch:" + folder + "r0", "1=touch:" + folder + "r1", "pause"}));
  });
  launcher.await({"r0", "r1"});
  ::kill(launcher.pid(), SIGINT);
  const auto result = launcher.end();
  EXPECT_EQ(result.code, 130);
  EXPECT_TRUE(std::regex_search(
      result.err,
      std::regex("weft: stopped by SIGINT; rank [01] ended first: SIGINT \\(signal 2\\)\n$")))
      << result.err;
}

TEST(LaunchSlow, LetsRanksFinishTheirWorkOnSigtermAndThenSucceeds) {
  Running launcher([](const std::string& folder) {
    return launch(child(1, {"block-term", "touch:" + folder + "r0", "wait-term", "out:saved"}));
  });
  launcher.await({"r0"});
  ::kill(launcher.pid(), SIGTERM);
  const auto result = launcher.end();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "saved\n");
}

TEST(LaunchSlow, KillsAtOnceOnASecondSignal) {
  Running launcher([](const std::string& folder) {
    return launch(child(1, {"ignore-term", "touch:" + folder + "r0", "pause"}));
  });
  launcher.await({"r0"});
  ::kill(launcher.pid(), SIGTERM);
  // Signals that come at once are one request.
  const auto deadline = Deadline::in(std::chrono::seconds(60));
  for (const auto pid = std::to_string(launcher.pid());
       !start_time(pid).empty() && !deadline.passed(); ::usleep(500))
    ::kill(launcher.pid(), SIGHUP);
  const auto result = launcher.end();
  EXPECT_TRUE(result.code == 128 + SIGKILL || result.code == 128 + SIGHUP) << result.code;
}

TEST(LaunchSlow, ContinuesAStoppedRankToEndIt) {
  const auto result = run(child(2, {"0=signal:" + std::to_string(SIGSTOP), "1=exit:5"}));
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, HasSubstr("weft: rank 0 ended as a consequence: SIGTERM"));
}

// If the launcher is killed, the kernel ends the ranks, and the store process kills their children.
TEST(LaunchSlow, LeavesNoProcessAndNoFileBehindWhenItIsKilled) {
  Running launcher([](const std::string& folder) {
    return launch(child(2, {"0=pid:" + folder + "r0", "1=pid:" + folder + "r1",
                            "1=grandchild:" + folder + "g1", "pause"}));
  });
  launcher.await({"r0", "r1", "g1"});
  ::kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.end().code, 128 + SIGKILL);
  const auto deadline = Deadline::in(std::chrono::seconds(2));
  for (const char* name : {"r0", "r1", "g1"}) {
    std::istringstream file(read_file(launcher.folder.path / name));
    std::string pid, started;
    file >> pid >> started;
    ASSERT_FALSE(started.empty());
    while (start_time(pid) == started && !deadline.passed()) ::usleep(500);
    EXPECT_NE(start_time(pid), started) << name << " still runs";
  }
  while (!std::filesystem::is_empty(launcher.temporary()) && !deadline.passed()) ::usleep(500);
  EXPECT_TRUE(std::filesystem::is_empty(launcher.temporary()));
}

TEST(LaunchSlow, SurvivesTheEndOfItsStoreProcessAndSaysSo) {
  Running launcher([](const std::string&) { return launch(child(2, {"0=kill-store", "pause"})); });
  const auto result = launcher.end();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("the process that holds the store ended first: SIGKILL"));
  EXPECT_TRUE(std::filesystem::is_empty(launcher.temporary()));
}

TEST(LaunchSlow, LetsARankDetectConflictingLaunchers) {
  const auto result =
      run(child(2, {"1=discover"}), {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("torchrun or weft run (RANK=1, WORLD_SIZE=2) and Open MPI "
                                    "(OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4) disagree"));
}

TEST(LaunchSlow, JoinsTwoNodesThatShareASecretFile) {
  Folder folder;
  const auto secret = (folder.path / "secret").string();
  std::ofstream(secret) << std::string(32, 'x');
  int port = 0;
  internal::listen_for_store("127.0.0.1", 0, &port).reset();
  auto options = child(1, {"discover", "store", "secret"});
  options.nnodes = "2";
  options.master_addr = "127.0.0.1";
  options.master_port = port;
  options.secret_file = secret;
  auto other = options;
  other.node_rank = 1;
  Running first([&](const std::string&) { return launch(options); });
  const auto second = run(other), result = first.end();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(result.out, HasSubstr("rank 0 of 2 (local 0 of 1, node 0)"));
  EXPECT_THAT(second.out, HasSubstr("rank 1 of 2 (local 0 of 1, node 1)"));
  EXPECT_THAT(second.out, HasSubstr("rank0 hi\nrank1 hi\nsecret 32"));
  EXPECT_EQ(lines(result.out).back(), lines(second.out).back());
}

TEST(LaunchSlow, GivesRankZeroTheTerminalOnRequest) {
  auto options = child(2, {"out:here"});
  options.rank0_keeps_terminal = true;
  auto out = lines(run(options).out);
  std::sort(out.begin(), out.end());
  EXPECT_THAT(out, testing::ElementsAre("[rank 1] here", "here"));
}

TEST(LaunchSlow, NeverMixesLinesOfTwoRanks) {
  const std::vector<std::string> things(200, "out:" + std::string(300, 'x'));
  const auto out = lines(run(child(3, things)).out);
  EXPECT_EQ(out.size(), 600u);
  for (const auto& line : out)
    EXPECT_TRUE(line.size() == 309 && line.rfind("[rank ", 0) == 0) << line;
}

TEST(Launch, ReportsAPortInUse) {
  int port = 0;
  const Fd taken = internal::listen_for_store("127.0.0.1", 0, &port);
  auto options = child(1, {});
  options.master_port = port;
  try {
    launch(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    EXPECT_EQ(error.message(),
              "127.0.0.1:" + std::to_string(port) +
                  " is in use; set another --master-port, or none for a free port");
  }
}

// Trying again would not help.
TEST(Launch, ALivePageThatWasNotBuiltIsNoReasonToRetry) {
  expect_refused([] { LivePage("127.0.0.1:0"); }, Errc::kInvalidArgument, "without the live page");
}

TEST(Launch, ReportsAMissingProgram) {
  auto options = child(2, {});
  options.program = {"./no-such-program"};
  EXPECT_THROW(launch(options), Error);
  options.program = {};
  EXPECT_THROW(launch(options), Error);
}

TEST(LaunchForked, RunsTheFunctionAsEveryRankWithItsEnvironment) {
  LaunchOptions options;
  options.nproc_per_node = "2";
  Running launcher([&](const std::string&) {
    return launch_forked(options, [](int rank) {
      ::dprintf(1, "%d of %s at %s\n", rank, std::getenv("WORLD_SIZE"), std::getenv("LOCAL_RANK"));
      return 0;
    });
  });
  const auto result = launcher.end();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] 0 of 2 at 0\n"));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] 1 of 2 at 1\n"));
}

TEST(LaunchForked, ReportsTheExceptionOfARank) {
  LaunchOptions options;
  options.nproc_per_node = "2";
  Running launcher([&](const std::string&) {
    return launch_forked(options, [](int rank) -> int {
      if (rank == 1) throw Error(Errc::kCorrupt, "the file is torn");
      return 0;
    });
  });
  const auto result = launcher.end();
  EXPECT_EQ(result.code, 65);
  EXPECT_THAT(
      result.err,
      EndsWith(
          "weft: rank 1 failed first: exit code 65 (weft: Corrupt): Corrupt: the file is torn\n"));
}

TEST(LaunchForked, RestartsByForkingAgain) {
  LaunchOptions options;
  options.nproc_per_node = "2";
  options.max_restarts = 1;
  Running launcher([&](const std::string&) {
    return launch_forked(options, [](int) {
      return std::getenv("TORCHELASTIC_RESTART_COUNT") == std::string("0") ? 1 : 0;
    });
  });
  EXPECT_EQ(launcher.end().code, 0);
}

}  // namespace
}  // namespace weft::launch
