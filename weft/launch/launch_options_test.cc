// Tests parsing of options, the command line of a program, and the address of the store.
#include "weft/launch/testing/launch_harness.h"

namespace weft::launch {
namespace {

std::string complaint_about(const LaunchOptions& options) {
  try {
    internal::read_options(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    return error.message();
  }
  return "";
}

TEST(ReadOptions, NamesTheWrongOptionAndItsValue) {
  const auto complaint = [](auto LaunchOptions::*option, const auto& value) -> std::string {
    LaunchOptions options;
    options.*option = value;
    return complaint_about(options);
  };
  EXPECT_THAT(complaint(&LaunchOptions::nproc_per_node, "two"), HasSubstr("--nproc-per-node two"));
  EXPECT_THAT(complaint(&LaunchOptions::nproc_per_node, "0"), HasSubstr("at least 1"));
  EXPECT_THAT(complaint(&LaunchOptions::nnodes, "1:4"), HasSubstr("--nnodes 1:4"));
  EXPECT_THAT(complaint(&LaunchOptions::nnodes, "2"), HasSubstr("--master-addr"));
  EXPECT_THAT(complaint(&LaunchOptions::node_rank, 1), HasSubstr("--node-rank 1"));
  EXPECT_THAT(complaint(&LaunchOptions::redirects, "4"), HasSubstr("--redirects 4"));
  EXPECT_THAT(complaint(&LaunchOptions::tee, "1:1"), HasSubstr("no local rank 1"));
  EXPECT_THAT(complaint(&LaunchOptions::local_ranks_filter, "3"), HasSubstr("no local rank 3"));
  EXPECT_THAT(complaint(&LaunchOptions::signals_to_handle, "SIGTERM,SIGKILL"),
              HasSubstr("SIGKILL"));
  EXPECT_EQ(complaint(&LaunchOptions::nnodes, "1:1"), "");
  EXPECT_THAT(complaint(&LaunchOptions::nnodes, "2000000000"), HasSubstr("at most 1048576"));
  for (const char* nodes : {"", ":", "2:", ":3", "0:2", "3:2", "1:2:3", "two"})
    EXPECT_THAT(complaint(&LaunchOptions::nnodes, nodes), HasSubstr("--nnodes ")) << nodes;
}

TEST(ReadOptions, ChecksTheParameterServersAndTellsTheRanks) {
  const auto complaint = [](auto&& change) -> std::string {
    LaunchOptions options;
    change(options);
    return complaint_about(options);
  };
  for (const int count : {-1, 65, 2'000'000'000}) {
    EXPECT_THAT(complaint([&](LaunchOptions& options) { options.servers.count = count; }),
                HasSubstr("--servers " + std::to_string(count) + ": from 0 to 64"));
  }
  EXPECT_THAT(complaint([](LaunchOptions& options) { options.servers.memory_mb = 0; }),
              HasSubstr("--server-memory 0: from 1"));
  EXPECT_THAT(complaint([](LaunchOptions& options) {
                options.servers.count = 2;
                options.nnodes = "2";
                options.master_addr = "10.0.0.1";
              }),
              HasSubstr("--servers 2: nodes with --master-addr have no store"));
  LaunchOptions options;
  options.servers.count = 1;
  EXPECT_FALSE(internal::read_options(options).server_backup) << "there is no other server";
  options.servers.count = 2;
  internal::Job job = internal::read_options(options);
  EXPECT_TRUE(job.server_backup);
  job.servers_folder = "/tmp/here";
  const auto environment = internal::rank_environment(options, job, 0, {});
  EXPECT_THAT(environment, testing::Contains("WEFT_PS_SERVERS=2"));
  EXPECT_THAT(environment, testing::Contains("WEFT_PS_FOLDER=/tmp/here"));
  options.servers.count = 0;  // a launcher that a rank starts has none of its own
  EXPECT_THAT(internal::rank_environment(options, internal::read_options(options), 0, {}),
              testing::Contains("WEFT_PS_SERVERS="));
}

TEST(ReadOptions, ReadsHowSeveralNodesMeet) {
  LaunchOptions options;
  options.nnodes = "2:3";
  options.nproc_per_node = "4";
  options.rdzv_endpoint = "10.0.0.1";
  options.rdzv_conf = "join_timeout=7,read_timeout=8";
  internal::Job job = internal::read_options(options);
  ASSERT_TRUE(job.membership);
  EXPECT_EQ(job.membership->endpoint_host, "10.0.0.1");
  EXPECT_EQ(job.membership->endpoint_port, 29400);
  EXPECT_EQ(job.membership->join_limit, std::chrono::seconds(7));
  EXPECT_EQ(job.membership->alone_limit, std::chrono::seconds(8));
  EXPECT_EQ(job.membership->min_nodes, 2);
  EXPECT_EQ(job.nodes, 3);
  EXPECT_EQ(job.min_ranks, 8);
  EXPECT_EQ(job.max_replacements, kNoLimit);
  options.rdzv_endpoint = "[::1]:7";
  EXPECT_EQ(internal::read_options(options).membership->endpoint_host, "::1");
  EXPECT_EQ(internal::read_options(options).membership->endpoint_port, 7);
  options.nnodes = "1";  // nothing to meet
  EXPECT_FALSE(internal::read_options(options).membership);
}

TEST(ReadOptions, NamesWhatIsWrongWithAMeeting) {
  const auto complaint = [](auto&& change) -> std::string {
    LaunchOptions options;
    options.nnodes = "2";
    options.rdzv_endpoint = "host:29400";
    change(options);
    return complaint_about(options);
  };
  EXPECT_EQ(complaint([](LaunchOptions&) {}), "");
  for (const char* endpoint : {":29400", "host:", "host:x", "host:0", "host:65536"}) {
    EXPECT_THAT(complaint([&](auto& options) { options.rdzv_endpoint = endpoint; }),
                HasSubstr("--rdzv-endpoint"))
        << endpoint;
  }
  for (const char* conf : {"x", "x=1", "join_timeout", "join_timeout=", "join_timeout=-1"}) {
    EXPECT_THAT(complaint([&](auto& options) { options.rdzv_conf = conf; }),
                HasSubstr("--rdzv-conf"))
        << conf;
  }
  EXPECT_THAT(complaint([](auto& options) { options.master_addr = "host"; }),
              HasSubstr("--master-addr host: leave it out"));
  EXPECT_THAT(complaint([](auto& options) { options.rendezvous = "etcd://h"; }),
              HasSubstr("leave out --rdzv-endpoint"));
  EXPECT_THAT(complaint([](auto& options) {
                options.rendezvous = "etcd://h";
                options.rdzv_endpoint = "";
              }),
              HasSubstr("set --rdzv-id"));
  EXPECT_THAT(complaint([](auto& options) { options.max_restarts = 1; }),
              HasSubstr("--max-restarts 1"));
  EXPECT_THAT(complaint([](auto& options) { options.spares = 1; }),
              HasSubstr("--spares 1: set --max-replacements"));
  EXPECT_EQ(complaint([](auto& options) {
              options.spares = 1;
              options.nnodes = "1:2";
            }),
            "");
}

TEST(ReadOptions, ReplacesRanksThatHangWhereLostOnesAreReplaced) {
  const auto complaint = [](auto&& change) -> std::string {
    LaunchOptions options;
    options.nproc_per_node = "4";
    options.on_hang = "replace";
    change(options);
    return complaint_about(options);
  };
  EXPECT_THAT(complaint([](LaunchOptions&) {}), HasSubstr("--on-hang replace: set "));
  EXPECT_EQ(complaint([](LaunchOptions& options) { options.nproc_per_node = "2:4"; }), "");
  EXPECT_EQ(complaint([](LaunchOptions& options) { options.min_ranks = 2; }), "");
  EXPECT_EQ(complaint([](LaunchOptions& options) { options.max_replacements = 1; }), "");
}

// All ranks of a job that has shrunk start again.
TEST(SetPlaces, KeepsWhatIsSaidOfRanksThatTheJobHasNoLonger) {
  LaunchOptions options;
  options.nproc_per_node = "4";
  options.redirects = "1:2,3:3";
  options.tee = "3:1";
  options.local_ranks_filter = "0,3";
  internal::Job job = internal::read_options(options);
  internal::set_places(job, options, 2);
  EXPECT_THAT(job.redirects, testing::ElementsAre(0, 2));
  EXPECT_THAT(job.tee, testing::ElementsAre(0, 0));
  EXPECT_THAT(job.shown, testing::ElementsAre(true, false));
  internal::set_places(job, options, 4);
  EXPECT_THAT(job.redirects, testing::ElementsAre(0, 2, 0, 3));
  EXPECT_THAT(job.shown, testing::ElementsAre(true, false, false, true));
}

TEST(ReadOptions, CountsProcessesLikeTorchrun) {
  EXPECT_EQ(internal::count_processes("3"), 3);
  EXPECT_GE(internal::count_processes("cpu"), 1);
  EXPECT_GE(internal::count_processes("auto"), 1);
}

TEST(CommandLine, RunsPythonFilesWithPython) {
  EXPECT_THAT(internal::command_line({"train.py", "--lr", "1"}),
              testing::ElementsAre("python3", "train.py", "--lr", "1"));
  EXPECT_THAT(internal::command_line({"./train"}), testing::ElementsAre("./train"));
}

// 0100007F is 127.0.0.1, state 0A is LISTEN.
TEST(StoreProcess, ListensOnLoopbackOnly) {
  internal::StoreProcess::Options options;
  const Fd listener = internal::listen_for_store("127.0.0.1", 0, &options.port);
  options.listener = listener.get();
  options.host = "127.0.0.1";
  const internal::StoreProcess store_process(options);
  char port[8];
  std::snprintf(port, sizeof port, ":%04X", static_cast<unsigned>(options.port));
  std::vector<std::string> listening;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const auto& line : lines(read_file(table))) {
      std::istringstream fields(line);
      std::string slot, local, remote, state;
      fields >> slot >> local >> remote >> state;
      if (state == "0A" && local.size() > 5 && local.substr(local.size() - 5) == port)
        listening.push_back(local);
    }
  }
  EXPECT_THAT(listening, testing::ElementsAre(std::string("0100007F") + port));
}

}  // namespace
}  // namespace weft::launch
