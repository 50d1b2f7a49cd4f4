// Clients that find the servers of their job through the environment, and what a server knows of
// the copies of its shards.
#include "weft/ps/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/base/testing/variables.h"
#include "weft/ps/server.h"

namespace weft::ps {
namespace job_test {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool comes_true(const std::function<bool()>& condition) {
  for (const Deadline deadline = Deadline::in(10s); !deadline.passed();) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

TEST(ServersOfTheJob, AreFoundByAClientWithoutArguments) {
  const TempDir folder;
  const UniqueFd secret(::memfd_create("secret", MFD_CLOEXEC));
  const std::string bytes(32, 's');
  ASSERT_EQ(::write(secret.get(), bytes.data(), bytes.size()), 32);
  const TestVariables job({{"WEFT_PS_FOLDER", folder / "ps"},
                           {"WEFT_PS_SERVERS", "2"},
                           {"WEFT_SECRET_FD", std::to_string(secret.get())},
                           {"WEFT_STORE", ""},
                           {"TORCHELASTIC_RUN_ID", "job"},
                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                           {"GROUP_WORLD_SIZE", "1"},
                           {"RANK", "1"}});
  EXPECT_EQ(servers_of_job(), 2u);
  {
    const auto directory = job_directory(kJobServers);
    ServerOptions options;
    options.directory = directory.get();
    options.servers = 2;
    options.secret = job_secret();
    const Server first(options);
    options.server = 1;
    const Server second(options);
    Client client(job_client());
    const std::vector<float> start{1, 2};
    client.define({{"w", start}}, {});
    client.join();
    for (float& value : client.gradient("w")) value = 10;
    client.wait(client.push());
    client.wait(client.pull());
    EXPECT_THAT(client.value("w"), ElementsAre(0, 1));
    // As worker 1, which is its rank, of the same servers.
    EXPECT_EQ(job_client().worker, 1u);
    EXPECT_EQ(client.stats().workers, 1u);
    client.leave();
  }
  EXPECT_NE(::access((folder / "ps/default-0").c_str(), F_OK), 0) << "the last user removes it";
}

TEST(ServersOfTheJob, AreMissedInOneLine) {
  const TestVariables none("WEFT_PS_SERVERS", "");
  EXPECT_EQ(servers_of_job(), 0u);
  EXPECT_THAT(refusal([] { job_client(); }), HasSubstr("start it with weft run --servers N"));
  EXPECT_THAT(refusal([] { Client client({.worker = 0}); }),
              HasSubstr("start it with weft run --servers N"));
  const TestVariables wrong("WEFT_PS_SERVERS", "two");
  EXPECT_THAT(refusal([] { servers_of_job(); }), HasSubstr("WEFT_PS_SERVERS is \"two\""));
}

TEST(Server, KnowsWhetherItsShardsHaveCopiesAndWhetherOneIsLost) {
  MemoryDirectory directory;
  ServerOptions options;
  options.directory = &directory;
  options.servers = 2;
  options.interface.clear();
  auto first = std::make_unique<Server>(options);
  options.server = 1;
  const Server second(options);
  EXPECT_TRUE(comes_true([&] { return first->is_replicated() && second.is_replicated(); }));
  first.reset();
  EXPECT_TRUE(comes_true([&] { return !second.is_replicated(); }));
  EXPECT_EQ(second.lost_shard(), std::nullopt);
  options.server = 0;
  first = std::make_unique<Server>(options);
  EXPECT_TRUE(comes_true([&] { return first->is_replicated() && second.is_replicated(); }));
  EXPECT_EQ(first->lost_shard(), std::nullopt);
}

TEST(Server, SaysThatAShardWithoutACopyIsLost) {
  MemoryDirectory directory;
  ServerOptions options;
  options.directory = &directory;
  options.interface.clear();
  auto server = std::make_unique<Server>(options);
  ASSERT_TRUE(comes_true([&] { return directory.views(Deadline::in(1s)).contains(0); }));
  server = nullptr;
  server = std::make_unique<Server>(options);
  EXPECT_TRUE(comes_true([&] { return server->lost_shard() == 0u; }));
  EXPECT_FALSE(server->is_replicated());
}

}  // namespace job_test
}  // namespace weft::ps
