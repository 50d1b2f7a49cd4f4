// Tests without a launcher: detection of the MPI, and the search for plug-ins. ranks_main.cc has
// the tests under mpirun.
#include "weft/net/mpi/internal/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "weft/base/error.h"
#include "weft/base/testing/variables.h"
#include "weft/net/mpi/mpi.h"

namespace weft::net::mpi {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::optional<std::string> started(const std::map<std::string, std::string>& variables) {
  return started_by([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

TEST(MpiStartedBy, DetectsTheLauncherByItsVariables) {
  EXPECT_EQ(started({{"HOME", "/"}}), std::nullopt);
  EXPECT_EQ(started({{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}}), "openmpi");
  EXPECT_EQ(started({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"HYDI_CONTROL_FD", "7"}}), "mpich");
  EXPECT_EQ(started({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), std::nullopt);
}

TEST(MpiStartedBy, LetsWeftMpiOverrideItAndRejectsUnknownValues) {
  EXPECT_EQ(started({{"WEFT_MPI", "mpich"}, {"OMPI_COMM_WORLD_RANK", "0"}}), "mpich");
  EXPECT_EQ(started({{"WEFT_MPI", ""}, {"OMPI_COMM_WORLD_RANK", "0"}}), "openmpi");
  EXPECT_THROW(started({{"WEFT_MPI", "lam"}}), Error);
}

TEST(MpiPlugin, IsSearchedBesideTheProgramInLibWeftAboveItAndByName) {
  EXPECT_THAT(
      internal::plugin_paths("mpich", "/opt/w/bin/weft", ""),
      ElementsAre("/opt/w/bin/libweft_mpi_mpich.so", "/opt/w/bin/lib/weft/libweft_mpi_mpich.so",
                  "/opt/w/lib/weft/libweft_mpi_mpich.so", "/opt/lib/weft/libweft_mpi_mpich.so",
                  "libweft_mpi_mpich.so"));
  EXPECT_THAT(internal::plugin_paths("openmpi", "/opt/w/bin/weft", "/elsewhere"),
              ElementsAre("/elsewhere/libweft_mpi_openmpi.so"));
}

// Returns the error of load_plugin() if exactly these variables are set.
std::string complaint(TestVariables::Values variables) {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "WEFT_MPI", "WEFT_PLUGIN_DIR"})
    variables.try_emplace(name);
  const TestVariables set(variables);
  try {
    internal::load_plugin();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    return error.message();
  }
  return "";
}

TEST(MpiPlugin, AreListedByTheirFiles) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft_plugins_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const TestVariables set("WEFT_PLUGIN_DIR", folder.string());
  EXPECT_THAT(plugins(), testing::IsEmpty());
  const auto file = (folder / "libweft_mpi_mpich.so").string();
  std::ofstream(file) << "no library";
  EXPECT_THAT(plugins(), ElementsAre(std::pair<std::string, std::string>("mpich", file)));
  std::filesystem::remove_all(folder);
}

TEST(MpiPlugin, ReportsInOneLineWhyThereIsNone) {
  EXPECT_THAT(complaint({}), HasSubstr("not started by an MPI; start it with mpirun"));
  EXPECT_THAT(complaint({{"PMI_RANK", "0"}, {"WEFT_PLUGIN_DIR", "/nowhere"}}),
              HasSubstr("libweft_mpi_mpich.so is not found"));
}

}  // namespace
}  // namespace weft::net::mpi
