// Tests parsing of options, the command line of a program, and the address of the store.
#include "weft/launch/testing/launch_harness.h"

namespace weft::launch {
namespace {

TEST(ReadOptions, NamesTheWrongOptionAndItsValue) {
  const auto complaint = [](auto LaunchOptions::*option, const auto& value) -> std::string {
    LaunchOptions options;
    options.*option = value;
    try {
      internal::read_options(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kBadConfig);
      return error.message();
    }
    return "";
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
