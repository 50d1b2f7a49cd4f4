#include "weft/train/internal/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"

namespace weft::train::internal {
namespace text_files_test {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class TextFiles : public testing::Test {
 protected:
  TextFiles() { fs::create_directories(folder_); }

  void put(const std::string& name, const std::string& text = "text") {
    const fs::path path = fs::path(dir_.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void link(const std::string& to, const std::string& name) {
    fs::create_symlink(to, folder_ / name);
  }
  // The files of the folder, relative to it.
  Names found() const {
    Names names;
    for (const std::string& file : text_files(folder_.string()))
      names.push_back(file.substr(folder_.string().size() + 1));
    return names;
  }

  const TempDir dir_;
  const fs::path folder_ = fs::path(dir_.path()) / "texts";
};

TEST_F(TextFiles, OfAFolderAreItsFilesAndThoseOfFoldersInItWithoutHiddenOnes) {
  put("texts/b");
  put("texts/a/deep/c");
  put("texts/.hidden");
  put("texts/.git/objects");
  EXPECT_EQ(found(), (Names{"a/deep/c", "b"}));
}

// Else a second training in the same folder would learn the log of the first one.
TEST_F(TextFiles, OfRunsAmongThemAreLeftOut) {
  put("texts/a");
  put("texts/runs/2026-01-31-235959-mine/config.toml");
  put("texts/runs/2026-01-31-235959-mine/log.jsonl");
  put("texts/runs/2026-01-31-235959-mine/ckpt/step-00000001/manifest");
  put("texts/notes/config.toml");
  EXPECT_EQ(found(), (Names{"a", "notes/config.toml"}));
}

TEST_F(TextFiles, BehindLinksAreTakenOnceEach) {
  put("outside/one");
  put("texts/z");
  link("../outside/one", "first");
  link("../outside/one", "second");
  link("z", "alias");
  EXPECT_EQ(found(), (Names{"first", "z"}));
}

TEST_F(TextFiles, BehindLinksToFoldersAreTakenOnceAndCirclesEnd) {
  put("outside/deep/one");
  put("texts/z");
  link("../outside", "more");
  link("../outside/deep", "again");
  link(".", "self");
  link("..", "up");
  // "up" leads to all files, which are taken already.
  EXPECT_EQ(found(), (Names{"again/one", "z"}));
}

TEST_F(TextFiles, OfAFolderThatHasOnlyLinksAreFound) {
  put("outside/one");
  link("../outside/one", "a.txt");
  EXPECT_EQ(found(), Names{"a.txt"});
}

TEST_F(TextFiles, AreRefusedForLinksThatLeadNowhereAndForFoldersWithoutFiles) {
  expect_refused([&] { found(); }, Errc::kBadConfig, "has no files");
  link("gone", "broken");
  expect_refused([&] { found(); }, Errc::kBadConfig, "broken leads nowhere");
  fs::remove(folder_ / "broken");
  link("loop", "loop");
  expect_refused([&] { found(); }, Errc::kBadConfig, "loop leads nowhere: ");
  expect_refused([&] { text_files(dir_ / "none"); }, Errc::kBadConfig, "there is no file");
  expect_refused([&] { text_files(""); }, Errc::kBadConfig, "data.file is not set");
}

TEST_F(TextFiles, AreRefusedIfTheyAreNoText) {
  put("texts/a");
  put("texts/b", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n");
  expect_refused([&] { found(); }, Errc::kBadConfig, "b is a Git LFS pointer");
  put("texts/b", std::string("\xFF\xFEh\0i\0", 6));
  expect_refused([&] { found(); }, Errc::kBadConfig, "b is text in UTF-16");
}

TEST_F(TextFiles, ThatMayNotBeUtf8AreNamedInAWarning) {
  put("texts/a", "caf\xE9 au lait");
  put("texts/b", "caf\xE9 au lait");
  set_log_level(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  EXPECT_EQ(found(), (Names{"a", "b"}));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::AllOf(testing::HasSubstr("a is not in UTF-8 from byte 3 on"),
                                  testing::HasSubstr("this file and another file")));
}

}  // namespace text_files_test
}  // namespace weft::train::internal
