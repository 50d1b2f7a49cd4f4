// The program weft_ps: serves workers, ends after them, and says what is wrong in one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <thread>

#include "weft/ps/client.h"
#include "weft/ps/testing/processes.h"

namespace weft::ps {
namespace program_test {

using namespace std::chrono_literals;
using testing::Child;
using testing::ForkedStore;

TEST(ServerProgram, ServesItsWorkersAndEndsAfterThem) {
  const ForkedStore store;
  Child server([&] {
    ::execl(WEFT_PS_PROGRAM, WEFT_PS_PROGRAM, "--store", store.name().c_str(), "--name", "test",
            nullptr);
    throw Error(Errc::kUnavailable, "weft_ps cannot be started");
  });
  {
    const auto directory = job_directory("test", store.name());
    ClientOptions options;
    options.directory = directory.get();
    options.worker = 0;
    Client client(options);
    const std::vector<float> start{1, 2};
    client.define({{"w", start}}, {});
    client.join();
    for (float& value : client.gradient("w")) value = 10;
    client.wait(client.push());
    client.wait(client.pull());
    EXPECT_THAT(client.value("w"), ::testing::ElementsAre(0, 1));
    client.leave();
    EXPECT_FALSE(server.has_ended());
  }
  const Deadline deadline = Deadline::in(10s);
  while (!server.has_ended()) {
    ASSERT_FALSE(deadline.passed()) << "the server does not end";
    std::this_thread::sleep_for(10ms);
  }
}

TEST(ServerProgram, NamesAMistakeInOneLine) {
  const auto run = [](const std::string& words) {
    std::string output;
    FILE* const pipe = ::popen(
        (std::string("TORCHELASTIC_RUN_ID= WEFT_STORE= " WEFT_PS_PROGRAM " ") + words + " 2>&1")
            .c_str(),
        "r");
    std::array<char, 256> part;
    while (std::fgets(part.data(), part.size(), pipe) != nullptr) output += part.data();
    return output + "status " + std::to_string(WEXITSTATUS(::pclose(pipe)));
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(run(""), HasSubstr("belongs to no job"));
  EXPECT_THAT(run("--store @x --servers two"), HasSubstr("--servers needs a number"));
  EXPECT_THAT(run("--store @x --sever 1"), HasSubstr("--sever is not an option"));
  EXPECT_THAT(run("--store @x --server 2 --servers 2"), HasSubstr("server 2 of 2"));
  EXPECT_THAT(run("--help"), HasSubstr("status 0"));
}

}  // namespace program_test
}  // namespace weft::ps
