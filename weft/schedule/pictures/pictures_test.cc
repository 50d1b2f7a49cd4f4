#include "weft/schedule/pictures/pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/base/error.h"

namespace weft::schedule {
namespace show_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int occurrences(const std::string& text, const std::string& what) {
  int count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

Request request(Algorithm algorithm, Collective collective, int world, int root = 0) {
  return {collective, algorithm, 0, world, root, 0};
}

// Patarasuk and Yuan's ring over three ranks, by hand: two rounds that add, two that distribute.
TEST(RenderText, ShowsTheMessagesOfEachRound) {
  EXPECT_THAT(render_text(request(Algorithm::kRing, Collective::kAllReduce, 3)),
              EndsWith("round    rank 0      rank 1      rank 2\n"
                       "1        →1:0 ←2:2+  →2:1 ←0:0+  →0:2 ←1:1+\n"
                       "2        →1:2 ←2:1+  →2:0 ←0:2+  →0:1 ←1:0+\n"
                       "3        →1:1 ←2:0   →2:2 ←0:1   →0:0 ←1:2\n"
                       "4        →1:0 ←2:2   →2:1 ←0:0   →0:2 ←1:1\n"));
}

TEST(RenderText, NamesBlocksByTheirRankWhereverTheyAreStored) {
  const std::string text = render_text(request(Algorithm::kBinomial, Collective::kGather, 4, 1));
  EXPECT_THAT(text, HasSubstr("sends the block of rank 2 to rank 1"));
  EXPECT_THAT(text, HasSubstr("→1:3"));
  EXPECT_THAT(text, HasSubstr("→1:0"));
}

TEST(RenderText, NumbersBlocksFromTheFirstEvenIfItNeverMoves) {
  const std::string text = render_text(request(Algorithm::kBinomial, Collective::kScatter, 4));
  EXPECT_THAT(
      text, HasSubstr("1        →2:2–3          ←0:2–3\n2        →1:1    ←0:1    →3:3    ←2:3\n"));
}

TEST(RenderText, ShowsMeetingsAndReadsInSharedMemory) {
  const std::string text = render_text(request(Algorithm::kDirect, Collective::kReduceScatter, 2));
  EXPECT_THAT(text, HasSubstr("1 meet   ←1:0+   ←0:1+\n2 meet\n"));
}

TEST(RenderText, SplitsWideTables) {
  const std::string text = render_text(request(Algorithm::kRing, Collective::kAllReduce, 32));
  EXPECT_GT(occurrences(text, "\nround "), 1);
  EXPECT_EQ(occurrences(text, "rank 31 "), 0) << "trailing blanks";
  EXPECT_EQ(occurrences(text, "  rank 31\n"), 1);
}

TEST(RenderSvg, DrawsEveryMessageOnceAndContainsItsDescription) {
  const std::string svg =
      render_svg(request(Algorithm::kHalvingDoubling, Collective::kAllReduce, 8));
  EXPECT_THAT(svg, StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("<title id=\"t\">Halving-doubling all-reduce</title>"));
  EXPECT_THAT(svg, HasSubstr("<desc id=\"d\">Space-time diagram: 8 ranks, 6 rounds;"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  // 6 rounds of 8 messages, and one of each kind in the legend.
  EXPECT_EQ(occurrences(svg, "<polygon"), 3 * 8 + 1);
  EXPECT_EQ(occurrences(svg, "<circle"), 3 * 8 + 1);
}

TEST(RenderSvg, DrawsEverySchedule) {
  for (const Algorithm algorithm : algorithms()) {
    for (const Collective collective : collectives()) {
      if (!supports(algorithm, collective)) continue;
      for (const int world : {1, 2, 7, 8}) {
        const std::string svg = render_svg(request(algorithm, collective, world, world / 2));
        for (const char* tag : {"g", "text", "svg", "style"}) {
          EXPECT_EQ(occurrences(svg, std::string("<") + tag + " ") +
                        occurrences(svg, std::string("<") + tag + ">"),
                    occurrences(svg, std::string("</") + tag + ">"))
              << tag << " in " << to_string(algorithm) << " " << to_string(collective) << " over "
              << world;
        }
        EXPECT_THAT(svg, Not(HasSubstr("nan")));
      }
    }
  }
}

TEST(RenderSvg, ShowsAFewBlocksOfAPipelineWhoseChunkIsGiven) {
  Request q = request(Algorithm::kDoubleBinaryTree, Collective::kBroadcast, 4);
  q.chunk = 10;
  EXPECT_THAT(render_text(q), HasSubstr("(count is 40)"));
}

TEST(RenderSvg, RefusesWorldsThatAreTooLargeToShow) {
  EXPECT_THAT([] { render_svg(request(Algorithm::kRing, Collective::kAllReduce, 1000)); },
              ::testing::ThrowsMessage<Error>(HasSubstr("more than can be shown")));
}

// Lian and others 2017: weight 1/3 for the rank itself and for both neighbors.
TEST(RenderGossip, ShowsNeighborsAndTheMixingRate) {
  EXPECT_EQ(render_text(Gossip{Graph::kRing, 4}),
            "Gossip, ring graph\n"
            "4 ranks, 2 messages a rank and round; mixing rate 0.3333: a thousand times nearer to "
            "the average after 7 rounds\n\n"
            "rank 0  keeps 0.3333, hears 1, 3 with 0.3333 each, and they hear it\n"
            "rank 1  keeps 0.3333, hears 0, 2 with 0.3333 each, and they hear it\n"
            "rank 2  keeps 0.3333, hears 1, 3 with 0.3333 each, and they hear it\n"
            "rank 3  keeps 0.3333, hears 0, 2 with 0.3333 each, and they hear it\n");
  EXPECT_THAT(render_text(Gossip{Graph::kOnePeerExponential, 8}),
              HasSubstr("all have the average after 3 rounds"));
  EXPECT_THAT(render_text(Gossip{Graph::kExponential, 100}), EndsWith("… and 92 more\n"));
}

TEST(RenderGossip, DrawsEveryLinkOnceWithAnArrowIfItIsOneWay) {
  const std::string ring = render_svg(Gossip{Graph::kRing, 8});
  EXPECT_EQ(occurrences(ring, "<line class=\"edge\""), 8);
  EXPECT_EQ(occurrences(ring, "<polygon"), 0);
  // The ranks 1 and 2 places ahead are heard one way; the rank 4 places ahead also hears back.
  const std::string exponential = render_svg(Gossip{Graph::kExponential, 8});
  EXPECT_EQ(occurrences(exponential, "<line class=\"edge\""), 8 + 8 + 4);
  EXPECT_EQ(occurrences(exponential, "<polygon"), 8 + 8);
  // 4 x 4: three links along each row and column, and one that wraps, drawn as two ends.
  const std::string grid = render_svg(Gossip{Graph::kGrid, 16});
  EXPECT_EQ(occurrences(grid, "<line class=\"edge\""), 8 * 3);
  EXPECT_EQ(occurrences(grid, "<line class=\"edge far\""), 8 * 2);
}

TEST(RenderGossip, DrawsEveryGraphAndRefusesWhatIsTooLargeToShow) {
  for (const Graph graph : graphs()) {
    for (const int world : {1, 2, 3, 8, 12, 64}) {
      const std::string svg = render_svg(Gossip{graph, world});
      EXPECT_EQ(occurrences(svg, "<g "), occurrences(svg, "</g>"));
      EXPECT_EQ(occurrences(svg, "<circle"), world * distinct_rounds({graph, world}))
          << to_string(graph) << " of " << world;
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
    }
  }
  EXPECT_THROW(render_svg(Gossip{Graph::kRing, 65}), Error);
}

}  // namespace show_test
}  // namespace weft::schedule
