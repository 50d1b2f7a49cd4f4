#include "tools/docs/document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tools/docs/internal/form_words.h"
#include "tools/docs/internal/words.h"
#include "weft/base/file.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::docs {
namespace {

void expect_committed(const std::vector<File>& files) {
  for (const File& file : files) {
    const std::string committed = read_file(std::string(WEFT_DOCS) + "/" + file.path, 8 << 20);
    EXPECT_TRUE(committed == file.text)
        << "docs/" << file.path << " is not what the code gives; run ./dev docs";
  }
}

TEST(AlgorithmsDocument, IsCommittedAsTheCodeWritesItToday) { expect_committed(algorithms()); }

TEST(PipelinesDocument, IsCommittedAsTheCodeWritesItToday) { expect_committed(pipelines()); }

TEST(PipelinesDocument, HasASectionAndAPictureOfEverySchedule) {
  const std::vector<File> files = pipelines();
  const auto all = schedule::pipeline::algorithms();
  EXPECT_EQ(files.size(), all.size() + 1);
  for (const auto algorithm : all) {
    EXPECT_NE(files.back().text.find(std::string("\n## ") + to_string(algorithm) + "\n"),
              std::string::npos)
        << to_string(algorithm);
  }
}

TEST(FormsDocument, IsCommittedAsTheCodeWritesItToday) { expect_committed(forms()); }

// In the pictures, all ranks together hold everything. With ZeRO, each replica holds the optimizer
// state once.
TEST(FormsDocument, LeavesNothingOut) {
  for (const internal::Form& form : internal::forms()) {
    int world = 1;
    for (const plan::Axis& axis : form.mesh) world *= axis.size;
    const plan::MeshLayout mesh(world, form.mesh);
    const auto first = internal::grids_of(form, mesh, 0);
    for (std::size_t g = 0; g < first.size(); ++g) {
      std::vector<int> kept(first[g].cells.size());
      for (int rank = 0; rank < world; ++rank) {
        const auto grid = internal::grids_of(form, mesh, rank)[g];
        for (std::size_t i = 0; i < kept.size(); ++i)
          kept[i] += grid.cells[i] == internal::Cell::kKept ? 1 : 0;
      }
      for (const int times : kept) EXPECT_GT(times, 0) << form.name << ": " << first[g].title;
      if (form.zero > 0 && first[g].title == "state") {
        for (const int times : kept) EXPECT_EQ(times, mesh.size("dp")) << form.name;
      }
    }
  }
}

TEST(FormsDocument, HasEveryAxisOfAMesh) {
  for (const char* axis : {"dp", "fsdp", "tp", "cp", "ep", "pp"}) {
    const auto forms = internal::forms();
    EXPECT_TRUE(std::any_of(forms.begin(), forms.end(), [&](const auto& form) {
      return form.mesh[0].name == axis;
    })) << axis;
  }
}

TEST(AlgorithmsDocument, SaysWhatEveryAlgorithmCostsForEachCollectiveThatItDoes) {
  for (const auto algorithm : schedule::algorithms()) {
    const auto formulas = internal::words_of(algorithm).formulas;
    for (const auto collective : schedule::collectives()) {
      const auto said = std::count_if(formulas.begin(), formulas.end(),
                                      [&](const auto& f) { return f.collective == collective; });
      EXPECT_EQ(said, supports(algorithm, collective) ? 1 : 0)
          << to_string(algorithm) << " " << to_string(collective);
    }
  }
}

TEST(AlgorithmsDocument, HasEveryGossipGraphOnce) {
  const auto words = internal::gossip_words();
  for (const auto graph : schedule::graphs()) {
    EXPECT_EQ(
        std::count_if(words.begin(), words.end(), [&](const auto& w) { return w.graph == graph; }),
        1)
        << to_string(graph);
  }
}

}  // namespace
}  // namespace weft::docs
