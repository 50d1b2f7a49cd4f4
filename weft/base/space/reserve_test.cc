#include "weft/base/space/reserve.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "weft/base/file.h"

namespace weft {
namespace reserve_test {

TEST(ReserveSpace, GivesEveryByteItsPlaceOnTheDisk) {
  const TempDir folder;
  const UniqueFd file = create_file(folder / "memory");
  constexpr std::int64_t kBytes = (4 << 20) + 5;  // two pieces
  EXPECT_EQ(reserve_space(file.get(), 0, kBytes), 0);
  EXPECT_EQ(reserve_space(file.get(), kBytes, 1000), 0);
  struct stat found {};
  ASSERT_EQ(::fstat(file.get(), &found), 0);
  EXPECT_EQ(found.st_size, kBytes + 1000);
  EXPECT_GE(found.st_blocks * 512, kBytes);
  EXPECT_EQ(reserve_space(file.get(), 0, 0), 0);
}

TEST(ReserveSpace, ReturnsTheReason) { EXPECT_EQ(reserve_space(-1, 0, 1), EBADF); }

}  // namespace reserve_test
}  // namespace weft
