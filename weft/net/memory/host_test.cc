#include "weft/net/memory/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "weft/base/error.h"
#include "weft/net/memory/heap.h"

namespace weft::net {
namespace host_test {

using namespace std::chrono_literals;

TEST(HostConnect, RejectsALocationOutsideTheHeapForTheGroupsMemory) {
  ASSERT_NE(process_heap(), nullptr) << process_heap_error();
  for (const std::string said : {"", "ok", "ok ", "ok x", "ok 64x", "ok -64", "ok 7",
                                 "ok 18446744073709551552", "ok 99999999999999999999"}) {
    bool named = false;
    const auto exchange = [&](const std::string& mine) {
      return std::vector{std::exchange(named, true) ? said : mine};
    };
    try {
      Host::connect({.rank = 0, .world = 1, .exchange = exchange, .timeout = 1s});
      ADD_FAILURE() << "'" << said << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
      EXPECT_THAT(error.message(), testing::HasSubstr("'" + said + "', which is not in its heap"));
    }
  }
}

}  // namespace host_test
}  // namespace weft::net
