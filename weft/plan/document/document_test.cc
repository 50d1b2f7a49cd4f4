#include "weft/plan/document/document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/plan/document/internal/words.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::plan::document {
namespace {

void expect_committed(const std::vector<File>& files) {
  for (const File& file : files) {
    const std::string committed = read_file(std::string(WEFT_DOCS) + "/" + file.path, 8 << 20);
    EXPECT_TRUE(committed == file.text) << "docs/" << file.path << " is not what the code gives; run ./dev docs";
  }
}

TEST(AlgorithmsDocument, IsCommittedAsTheCodeWritesItToday) { expect_committed(algorithms()); }

TEST(PipelinesDocument, IsCommittedAsTheCodeWritesItToday) { expect_committed(pipelines()); }

TEST(PipelinesDocument, HasASectionAndAPictureOfEverySchedule) {
  const std::vector<File> files = pipelines();
  const auto all = schedule::pipeline::algorithms();
  EXPECT_EQ(files.size(), all.size() + 1);
  for (const auto algorithm : all) {
    EXPECT_NE(files.back().text.find(std::string("\n## ") + to_string(algorithm) + "\n"), std::string::npos) << to_string(algorithm);
  }
}

TEST(AlgorithmsDocument, SaysWhatEveryAlgorithmCostsForEachCollectiveThatItDoes) {
  for (const auto algorithm : schedule::algorithms()) {
    const auto formulas = internal::words_of(algorithm).formulas;
    for (const auto collective : schedule::collectives()) {
      const auto said = std::count_if(formulas.begin(), formulas.end(), [&](const auto& f) { return f.collective == collective; });
      EXPECT_EQ(said, supports(algorithm, collective) ? 1 : 0) << to_string(algorithm) << " " << to_string(collective);
    }
  }
}

TEST(AlgorithmsDocument, HasEveryGossipGraphOnce) {
  const auto words = internal::gossip_words();
  for (const auto graph : schedule::graphs()) {
    EXPECT_EQ(std::count_if(words.begin(), words.end(), [&](const auto& w) { return w.graph == graph; }), 1) << to_string(graph);
  }
}

}  // namespace
}  // namespace weft::plan::document
