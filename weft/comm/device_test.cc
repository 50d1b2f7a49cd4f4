#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/init.h"
#include "weft/comm/internal/local_rank.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace device_test {

std::string of(const std::string& name, int local_rank, int devices) {
  return device_of(name, local_rank, devices).str();
}

TEST(Device, IsTheOneWithTheRanksNumber) {
  EXPECT_EQ(of("cpu", 0, 2), "cpu");
  EXPECT_EQ(of("cuda", 1, 2), "cuda:1");
  EXPECT_EQ(of("cuda:0", 1, 2), "cuda:0");
  EXPECT_EQ(of("auto", 1, 2), "cuda:1");
  EXPECT_EQ(of("auto", 2, 2), "cpu");
  EXPECT_EQ(of("auto", 0, 0), "cpu");
}

TEST(Device, HasItsNameAsText) {
  for (const char* const name : {"cpu", "cuda", "cuda:3", "auto"}) {
    EXPECT_EQ(DeviceSpec(name).text(), name);
    EXPECT_EQ(DeviceSpec(name).is_cpu(), name == std::string("cpu"));
  }
  EXPECT_NE(DeviceSpec("cuda"), DeviceSpec("cuda:0"));
}

TEST(Device, ThatIsNotThereIsRefused) {
  expect_refused([] { of("cuda", 1, 1); }, Errc::kBadConfig, "has 1 CUDA device;");
  expect_refused([] { of("cuda", 0, 0); }, Errc::kBadConfig,
                 "needs a CUDA device on this host, but there is none");
  expect_refused([] { of("cuda:3", 0, 2); }, Errc::kBadConfig, "needs CUDA device 3");
  for (const char* const name : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x"})
    expect_refused([name] { DeviceSpec{name}; }, Errc::kBadConfig, "unknown device");
}

TEST(Device, HasTheNumberThatTheProgramGaveToInit) {
  const auto codes = fork_ranks(1, "auto", [](const Group&) {
    const Group alone = init(Identity{.local_rank = 3}, {.shared_allocator = false});
    return internal::local_rank();
  });
  EXPECT_EQ(codes, std::vector<int>{3});
}

}  // namespace device_test
}  // namespace weft::comm
