#include "weft/plan/collectives/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::plan {
namespace calibration_test {

using testing::HasSubstr;

// Sets WEFT_CALIBRATION for a test, and unsets it afterwards.
class CalibrationFile : public testing::Test {
 protected:
  void SetUp() override { ::setenv("WEFT_CALIBRATION", path().c_str(), 1); }
  void TearDown() override {
    ::unsetenv("WEFT_CALIBRATION");
    ::unsetenv("XDG_CACHE_HOME");
  }
  std::string path() const { return folder_ / "deep/costs.txt"; }
  CostTable table() const {
    CostTable table{.machine = machine_identity(), .date = "2026-11-21", .transports = {}};
    table.transports[Transport::kShm] = {
        .message = Curve::line(1e-6, 1e-9), .reduce = {}, .copy = {}, .measured = {}};
    return table;
  }
  // Result and warnings of load_table().
  std::pair<CostTable, std::string> load() const {
    testing::internal::CaptureStderr();
    CostTable table = load_table();
    return {table, testing::internal::GetCapturedStderr()};
  }
  TempDir folder_;
};

TEST_F(CalibrationFile, LoadsWhatWasSaved) {
  EXPECT_EQ(save_table(table()), path());
  const auto [read, warning] = load();
  EXPECT_EQ(read, table());
  EXPECT_EQ(warning, "");
}

TEST_F(CalibrationFile, IfDamagedGivesOneWarningAndTheDefaults) {
  save_table(table());
  std::string text = read_file(path(), 1 << 20);
  text[text.size() / 2] ^= 1;
  write_file_atomic(path(), text);
  const auto [read, warning] = load();
  EXPECT_EQ(read, default_table());
  EXPECT_THAT(warning, HasSubstr("checksum"));
  EXPECT_THAT(warning, HasSubstr("remove it"));
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1);
}

TEST_F(CalibrationFile, OfAnotherMachineGivesOneWarningAndTheDefaults) {
  CostTable foreign = table();
  foreign.machine = "Abacus, 1 processors";
  save_table(foreign);
  const auto [read, warning] = load();
  EXPECT_EQ(read, default_table());
  EXPECT_THAT(warning, HasSubstr("of another machine (Abacus"));
}

TEST_F(CalibrationFile, IfEndlessIsNotRead) {
  ::setenv("WEFT_CALIBRATION", "/dev/zero", 1);
  const auto [read, warning] = load();
  EXPECT_EQ(read, default_table());
  EXPECT_THAT(warning, HasSubstr("/dev/zero"));
}

TEST_F(CalibrationFile, IfMissingGivesTheDefaultsWithoutAWarning) {
  ::unsetenv("WEFT_CALIBRATION");
  ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  const auto [read, warning] = load();
  EXPECT_EQ(read, default_table());
  EXPECT_EQ(warning, "");
  EXPECT_THAT(calibration_path(), HasSubstr(folder_.path() + "/weft/calibration-"));
}

}  // namespace calibration_test
}  // namespace weft::plan
